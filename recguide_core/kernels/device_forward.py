"""The NLD transformer over packed rows in fixed buffers: what a captured graph replays.

The same arithmetic as `model.transformer`, arranged for the kernels: RoPE works in place on the
QKV projection and writes the commit rows, attention reads in-flight K/V from there, the adapter is
added under a row mask. Nothing here reads a value back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import Geometry, PageTable, Rotation, RoundOps
from recguide_core.kernels.round_state import PackedRows, ReadoutBuffers
from recguide_core.kernels.sampled_rows import RowNoise
from recguide_core.model.transformer import Transformer


def geometry_of(transformer: Transformer, page: int) -> Geometry:
    """What the kernels must know of a model."""
    c = transformer.config
    return Geometry(c.heads, c.kv_heads, c.head_dim, c.vocab, page, c.mask_id, c.eos_ids)


@dataclass(frozen=True, slots=True)
class Pools:
    """Committed K/V of every layer, each [slots, N, D]."""

    k: list[torch.Tensor]
    v: list[torch.Tensor]


class DeviceForward:
    """One forward of at most `tokens` packed tokens.

    Args:
        adapter: False leaves the draft adapter out (the self-test compares the two).
        mixed: attention output [tokens, H, D] to write into, where forwards that never run at the
            same time share one; None makes one.
    """

    def __init__(
        self,
        transformer: Transformer,
        ops: RoundOps,
        tokens: int,
        *,
        adapter: bool = True,
        mixed: torch.Tensor | None = None,
    ) -> None:
        self.transformer = transformer
        self.ops = ops
        self.adapter = transformer.adapter if adapter else None
        config = transformer.config
        shape = (tokens, config.heads, config.head_dim)
        if mixed is None:
            mixed = torch.zeros(shape, dtype=transformer.dtype, device=transformer.device)
        # Padding tokens are in no request: attention leaves their rows as they are.
        self.mixed = mixed

    def rotation(self, pos: torch.Tensor) -> Rotation:
        """cos, sin and query temperature of packed positions."""
        rotary = self.transformer.rotary
        half = self.transformer.config.head_dim // 2
        at = pos.long()
        if rotary.temperature is None:
            heat = torch.ones(len(pos), device=pos.device)
        else:
            heat = rotary.temperature[at]
        # The table keeps the sign of rotate_half in the first half of sin.
        cos, sin = rotary.cos[at, :half], rotary.sin[at, half:]
        return Rotation(cos.contiguous(), sin.contiguous(), heat)

    def hidden(
        self, rows: PackedRows, table: PageTable, prefix: torch.Tensor, pools: Pools
    ) -> torch.Tensor:
        """Normed final hidden states of all packed tokens, padding included, [T, hidden].

        Args:
            prefix: committed tokens P of each request, int32 [N].
        """
        model, ops = self.transformer, self.ops
        config, weights = model.config, model.weights
        norm = (config.hidden,)
        mixed = self.mixed[: len(rows.ids)]
        rotation = self.rotation(rows.pos)
        ops.prepare(rows.q_ptr, prefix)
        x = F.embedding(rows.ids.long(), weights.embed)
        for i, layer in enumerate(weights.layers):
            qkv = F.linear(F.rms_norm(x, norm, layer.attn_norm, config.rms_eps), layer.qkv)
            ops.rotate_and_store(qkv, rotation, rows, table, pools.k[i], pools.v[i])
            ops.attend(qkv, rows, table, prefix, pools.k[i], pools.v[i], mixed)
            flat = mixed.view(len(mixed), -1)
            out = F.linear(flat, layer.o)
            if self.adapter is not None:
                down, up = self.adapter.down[i], self.adapter.up[i]
                ops.add_adapter(out, flat, down, up, rows.adapter)
            x = x + out
            h = F.rms_norm(x, norm, layer.mlp_norm, config.rms_eps)
            gate, up_part = F.linear(h, layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up_part, layer.down)
        return F.rms_norm(x, norm, weights.norm, config.rms_eps)

    def read(
        self,
        rows: PackedRows,
        table: PageTable,
        prefix: torch.Tensor,
        pools: Pools,
        head: OutputHead,
        into: ReadoutBuffers,
        noise: RowNoise | None = None,
    ) -> None:
        """Forward and read-out of every packed token."""
        head.run(self.ops, self.hidden(rows, table, prefix, pools), into, noise)
