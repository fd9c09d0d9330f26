"""The kernel interface of a device-resident round, and its implementation in torch.

`RoundOps` names every operation between two host reads. `TorchRoundOps` runs the twins (any
device, any dtype); `ops_triton.TritonRoundOps` launches the kernels on the same buffers. One
object belongs to one graph key: it owns the workspace for at most `tokens` packed tokens of at
most `requests` requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from recguide_core.kernels import attention_reference, launch, rope_torch
from recguide_core.kernels.assemble_torch import assemble
from recguide_core.kernels.choose_torch import RoundRule, choose
from recguide_core.kernels.lora_torch import add_masked
from recguide_core.kernels.readout_torch import read_scores
from recguide_core.kernels.round_state import (
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.kernels.sampled_rows import RowNoise
from recguide_core.kernels.sampling_torch import FILTERED, gumbel_of
from recguide_core.kernels.settle_torch import settle


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the kernels must know of a model and its pool."""

    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    page: int
    mask_id: int
    eos_ids: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads per KV head (G)."""
        return self.heads // self.kv_heads

    @property
    def eos_slots(self) -> tuple[int, int, int, int]:
        """EOS ids as the kernels take them, -1 for none."""
        a, b, c, d = (*self.eos_ids, -1, -1, -1, -1)[: launch.MAX_EOS]
        return a, b, c, d


@dataclass(frozen=True, slots=True)
class PageTable:
    """Pages of the requests, CSR: `pages` int32 [*], `page_ptr` int32 [N + 1]; `page` slots each.

    The table of a request already covers the tokens that this round may commit.
    """

    pages: torch.Tensor
    page_ptr: torch.Tensor
    page: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """Per-token rotary inputs, made once a forward: cos, sin fp32 [T, D / 2]; heat fp32 [T]."""

    cos: torch.Tensor
    sin: torch.Tensor
    heat: torch.Tensor


class RoundOps(Protocol):
    """Everything between two host reads; shapes in the modules of the twins."""

    geometry: Geometry

    def choose(
        self, state: RoundState, target: torch.Tensor, rule: RoundRule, plan: RoundPlan
    ) -> None:
        """Acts, blocks and branches of the step."""

    def assemble(self, state: RoundState, plan: RoundPlan, rows: PackedRows) -> None:
        """Packed ids, positions, intervals and flags."""

    def prepare(self, q_ptr: torch.Tensor, prefix: torch.Tensor) -> None:
        """Work list of the forward's attention; q_ptr int32 [N + 1], prefix int32 [N]."""

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        rows: PackedRows,
        table: PageTable,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> None:
        """RoPE in place on qkv [T, (H + 2 N) D]; K/V of commit rows into the pool."""

    def attend(
        self,
        qkv: torch.Tensor,
        rows: PackedRows,
        table: PageTable,
        prefix: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """out [T, H, D] of rotated qkv; tokens of no request are left alone."""

    def add_adapter(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        adapter: torch.Tensor,
    ) -> None:
        """out [T, hidden] += masked low-rank delta of x."""

    def readout(
        self, logits: torch.Tensor, into: ReadoutBuffers, noise: RowNoise | None = None
    ) -> None:
        """Tokens and statistics of logits [n, V] into buffers of n rows; greedy without noise."""

    def settle(
        self,
        state: RoundState,
        plan: RoundPlan,
        rows: PackedRows,
        read: ReadoutBuffers,
        emitted: Emitted,
        decisions: int,
    ) -> None:
        """Accept, emit, pick the hit branch; `state` advances in place."""


def split_qkv(
    qkv: torch.Tensor, geometry: Geometry
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views q [T, H, D], k and v [T, N, D] of a fused projection [T, (H + 2 N) D]."""
    H, N = geometry.heads, geometry.kv_heads
    x = qkv.view(len(qkv), H + 2 * N, geometry.head_dim)
    return x[:, :H], x[:, H : H + N], x[:, H + N :]


class TorchRoundOps:
    """The twins behind the kernel interface."""

    def __init__(self, geometry: Geometry, compute: torch.dtype = torch.float32) -> None:
        self.geometry = geometry
        self.compute = compute

    def choose(
        self, state: RoundState, target: torch.Tensor, rule: RoundRule, plan: RoundPlan
    ) -> None:
        choose(state, target, rule, plan)

    def assemble(self, state: RoundState, plan: RoundPlan, rows: PackedRows) -> None:
        assemble(state, plan, rows, self.geometry.mask_id)

    def prepare(self, q_ptr: torch.Tensor, prefix: torch.Tensor) -> None:
        """Nothing to plan: the twin walks over requests."""

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        rows: PackedRows,
        table: PageTable,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> None:
        slots = rope_torch.pool_slots(
            rows.pos, rows.request, rows.commit, table.pages, table.page_ptr, table.page
        )
        rope_torch.rotate_and_store(
            qkv, rotation.cos, rotation.sin, rotation.heat, slots, k_pool, v_pool,
            self.geometry.heads,
        )  # fmt: skip

    def attend(
        self,
        qkv: torch.Tensor,
        rows: PackedRows,
        table: PageTable,
        prefix: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        q, k, v = split_qkv(qkv, self.geometry)
        q_ptr = rows.q_ptr.tolist()
        result = attention_reference.attend(
            q, k, v, k_pool, v_pool, table.pages, table.page_ptr, q_ptr, prefix.tolist(),
            rows.vis, table.page, dtype=self.compute,
        )  # fmt: skip
        out[: q_ptr[-1]] = result[: q_ptr[-1]].to(out.dtype)

    def add_adapter(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        adapter: torch.Tensor,
    ) -> None:
        add_masked(out, x, down, up, adapter)

    def readout(
        self, logits: torch.Tensor, into: ReadoutBuffers, noise: RowNoise | None = None
    ) -> None:
        z = logits.to(torch.float32, copy=True)
        z[:, self.geometry.mask_id] = FILTERED
        into.stats[:, 4] = z.logsumexp(1)
        scores = None
        if noise is not None:
            drawn = z / noise.heat[:, None] + gumbel_of(noise.key.long() & 0xFFFFFFFF, z.shape[1])
            scores = torch.where(noise.heat[:, None] > 0, drawn, z)
        found = read_scores(z, scores, self.geometry.eos_ids)
        into.ids[:, 0], into.ids[:, 1] = found.token, found.alt
        into.stats[:, 0], into.stats[:, 1] = found.confidence, found.confidence - found.margin
        into.stats[:, 2], into.stats[:, 3] = found.margin, found.entropy

    def settle(
        self,
        state: RoundState,
        plan: RoundPlan,
        rows: PackedRows,
        read: ReadoutBuffers,
        emitted: Emitted,
        decisions: int,
    ) -> None:
        settle(state, plan, rows, read, emitted, self.geometry.eos_ids, decisions)
