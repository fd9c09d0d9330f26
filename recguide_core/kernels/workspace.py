"""Scratch memory of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recguide_core.kernels import launch
from recguide_core.kernels.ops import Geometry


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory; one serves every graph key, because graphs replay one after another.

    Attributes:
        part, part_lse: partial attention results, fp32; read_f, read_i: partial read-outs;
            low: partial adapter products. Flat; each launch uses the head of its buffer.
    """

    part: torch.Tensor
    part_lse: torch.Tensor
    read_f: torch.Tensor
    read_i: torch.Tensor
    low: torch.Tensor

    @classmethod
    def sized(
        cls,
        geometry: Geometry,
        tokens: int,
        partials: int,
        device: torch.device | str,
        rank: int = 0,
        block_m: int = launch.WIDE.block_m,
    ) -> Workspace:
        """Room for `partials` partial blocks of `block_m` rows and forwards of `tokens` tokens."""
        rows = partials * geometry.kv_heads * block_m
        splits = tokens * launch.MAX_SPLITS

        def floats(n: int) -> torch.Tensor:
            return torch.empty(n, dtype=torch.float32, device=device)

        return cls(
            part=floats(rows * geometry.head_dim),
            part_lse=floats(rows),
            read_f=floats(splits * 6),
            read_i=torch.empty(splits * 2, dtype=torch.int32, device=device),
            low=floats(launch.LORA.splits * tokens * rank),
        )
