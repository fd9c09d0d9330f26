"""The draft adapter: a low-rank delta on every `o_proj`, active on draft rows only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(slots=True)
class DraftAdapter:
    """LoRA in PEFT form: out += scale * (x A^T) B^T with scale = alpha / r.

    Attributes:
        down: A of each layer, [r, heads * head_dim].
        up: B of each layer times the scale, [hidden, r].
    """

    down: list[torch.Tensor]
    up: list[torch.Tensor]

    def add(
        self,
        layer: int,
        x: torch.Tensor,
        out: torch.Tensor,
        tokens: torch.Tensor | bool,
    ) -> None:
        """Add the delta in place to `out` [T, hidden] for the adapter tokens of x [T, H * D]."""
        down, up = self.down[layer], self.up[layer]
        if isinstance(tokens, bool):
            if tokens:
                out += F.linear(F.linear(x, down), up)
        else:
            out.index_add_(0, tokens, F.linear(F.linear(x[tokens], down), up))
