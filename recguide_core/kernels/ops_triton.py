"""The kernel interface of `ops`, launched as Triton kernels.

No allocation, no host read and no environment lookup after construction: every launch has a fixed
grid and fixed buffers, so the whole of a round can be captured in one CUDA graph.
"""

from __future__ import annotations

import math

import torch

from recguide_core.errors import CapacityError
from recguide_core.kernels import launch, tiles
from recguide_core.kernels.assemble_triton import assemble_rows
from recguide_core.kernels.attention_triton import attention_merge, attention_tiles
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.choose_triton import choose_acts
from recguide_core.kernels.lora_triton import lora_expand, lora_shrink
from recguide_core.kernels.ops import Geometry, PageTable, Rotation, split_qkv
from recguide_core.kernels.readout_triton import readout_merge, readout_partials
from recguide_core.kernels.rope_triton import rotate_and_store
from recguide_core.kernels.round_state import (
    STOP_IDS,
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.kernels.sample_triton import sample_merge, sample_partials
from recguide_core.kernels.sampled_rows import RowNoise
from recguide_core.kernels.settle_triton import settle_rounds
from recguide_core.kernels.tiles_triton import plan_tiles
from recguide_core.kernels.workspace import Workspace
from recguide_core.records import MAX_BLOCK

LOG2_E = math.log2(math.e)
_SAMPLING = ("temperature", "noise_key", "top_k", "top_p", "min_p")
"""Fields of the state that only the read-out wants."""


class TritonRoundOps:
    """Kernels for at most `tokens` packed tokens of at most `requests` requests.

    Args:
        multiprocessors: of the device; decides how finely the keys are split.
        fixed_range: keys per range when rounding must not depend on the batch; 0 derives it.
        exact: arithmetic for Triton's interpreter (`triton_numeric`); False on a GPU.
        config: overrides the launch table (device measurements, tests).
        rank: of the draft adapter, 0 without one.
        workspace: shared scratch memory; None allocates its own.
    """

    def __init__(
        self,
        geometry: Geometry,
        tokens: int,
        requests: int,
        device: torch.device | str,
        multiprocessors: int,
        *,
        fixed_range: int = 0,
        max_context: int = 0,
        exact: bool = False,
        config: launch.AttentionConfig | None = None,
        rank: int = 0,
        workspace: Workspace | None = None,
    ) -> None:
        g = geometry
        found = config or launch.attention_config(tokens, requests, g.group, g.head_dim, g.page)
        if found is None:
            raise CapacityError(
                f"No compiled attention kernel serves head size {g.head_dim}, group {g.group}, "
                f"page {g.page}, {requests} requests.",
                "Use the torch attention back end for this model.",
            )
        assert len(g.eos_ids) <= launch.MAX_EOS
        self.geometry = geometry
        self.config = found
        self.tokens, self.requests = tokens, requests
        self.exact = exact
        self.fixed_range = fixed_range
        self.multiprocessors = multiprocessors
        self.slots = launch.PROGRAMS_PER_SM * multiprocessors
        self.capacity = tiles.capacity(
            tokens, requests, g.group, found.block_m, g.kv_heads, self.slots,
            -(-max_context // fixed_range) if fixed_range else 0,
        )  # fmt: skip
        self.work = tiles.Tiles.sized(self.capacity, device)
        self.scratch = workspace or Workspace.sized(
            g, tokens, self.capacity.partials, device, rank, found.block_m
        )

    def choose(
        self, state: RoundState, target: torch.Tensor, rule: RoundRule, plan: RoundPlan
    ) -> None:
        s, p = state, plan
        choose_acts[(len(s.live),)](
            s.live, s.has_draft, s.draft_block, s.remaining, s.room, s.margin, s.alt, target,
            p.act, p.block, p.kind, p.parent, p.alt, p.branch_block,
            rule.delta, rule.corrections, int(rule.continuation), int(rule.tidar),
            p.kind.shape[1], MAX_B=MAX_BLOCK, num_warps=1,
        )  # fmt: skip

    def assemble(self, state: RoundState, plan: RoundPlan, rows: PackedRows) -> None:
        s, p, w = state, plan, rows
        n = len(s.live)
        assemble_rows[(n,)](
            s.live, s.committed, s.seed, s.draft, p.act, p.block, p.kind, p.parent, p.alt,
            p.branch_block, w.ids, w.pos, w.vis, w.adapter, w.commit, w.request, w.q_ptr,
            n, len(w.ids), self.geometry.mask_id, p.kind.shape[1],
            MAX_B=MAX_BLOCK, N2=_power(n, self.exact), STEP=128, num_warps=1,
        )  # fmt: skip

    def prepare(self, q_ptr: torch.Tensor, prefix: torch.Tensor) -> None:
        g, c, work, n = self.geometry, self.config, self.work, len(prefix)
        plan_tiles[(n,)](
            q_ptr, prefix, work.items, work.n_items, work.groups, work.n_groups,
            n, self.slots, g.kv_heads, self.fixed_range, len(work.items), len(work.groups),
            G=g.group, BLOCK_M=c.block_m, BLOCK_N=c.block_n, R2=_power(n, self.exact), STEP=32,
            num_warps=1,
        )  # fmt: skip

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        rows: PackedRows,
        table: PageTable,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> None:
        g = self.geometry
        heads = g.heads + 2 * g.kv_heads
        rotate_and_store[(len(qkv), -(-heads // 8))](
            qkv, rotation.cos, rotation.sin, rotation.heat, rows.pos, rows.request, rows.commit,
            table.pages, table.page_ptr, k_pool, v_pool,
            qkv.stride(0), rotation.cos.stride(0), k_pool.stride(0), k_pool.stride(1),
            v_pool.stride(0), v_pool.stride(1), g.heads, g.kv_heads,
            HALF=g.head_dim // 2, PAGE=table.page, BLOCK_H=8, EXACT=self.exact, num_warps=2,
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
        self.attend_rows(q, k, v, rows.vis, table, k_pool, v_pool, out)

    def attend_rows(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        vis: torch.Tensor,
        table: PageTable,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Attention by the work list of the last `prepare`; shapes in `attention_triton`."""
        g, c, work = self.geometry, self.config, self.work
        attention_tiles[(len(work.items), g.kv_heads)](
            q, k, v, k_pool, v_pool, table.pages, table.page_ptr, vis,
            work.items, work.n_items, out, self.scratch.part, self.scratch.part_lse,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            k_pool.stride(0), k_pool.stride(1), v_pool.stride(0), v_pool.stride(1),
            out.stride(0), out.stride(1), g.head_dim**-0.5 * LOG2_E, g.kv_heads,
            G=g.group, D=g.head_dim, PAGE=table.page, BLOCK_M=c.block_m, BLOCK_N=c.block_n,
            STAGES=c.stages, EXACT=self.exact, num_warps=c.warps, num_stages=c.stages,
        )  # fmt: skip
        rows = min(c.merge_rows, c.block_m)
        attention_merge[(len(work.groups), g.kv_heads, c.block_m // rows)](
            self.scratch.part, self.scratch.part_lse, work.groups, work.n_groups, out,
            out.stride(0), out.stride(1), g.kv_heads,
            G=g.group, D=g.head_dim, BLOCK_M=c.block_m, ROWS=rows, EXACT=self.exact, num_warps=4,
        )  # fmt: skip

    def add_adapter(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        down: torch.Tensor,
        up: torch.Tensor,
        adapter: torch.Tensor,
    ) -> None:
        c, (rank, K), T = launch.LORA, down.shape, len(x)
        splits = launch.lora_splits(K)
        blocks = -(-T // c.block_m)
        lora_shrink[(blocks, splits)](
            x, down, adapter, self.scratch.low, T, K // splits, x.stride(0), down.stride(0),
            RANK=rank, BLOCK_M=c.block_m, BLOCK_K=c.block_k, EXACT=self.exact,
            num_warps=c.warps, num_stages=3,
        )  # fmt: skip
        lora_expand[(blocks, out.shape[1] // c.block_n)](
            out, self.scratch.low, up, adapter, T, splits, out.stride(0), up.stride(0),
            RANK=rank, BLOCK_M=c.block_m, BLOCK_N=c.block_n, EXACT=self.exact,
            num_warps=c.warps,
        )  # fmt: skip

    def readout(
        self, logits: torch.Tensor, into: ReadoutBuffers, noise: RowNoise | None = None
    ) -> None:
        n, V = logits.shape
        block = launch.READOUT.block
        splits = launch.readout_splits(n, V, self.multiprocessors)
        chunk = -(-V // (splits * block)) * block
        splits = -(-V // chunk)
        g = self.geometry
        if noise is not None:
            self._sample(logits, into, noise, chunk, splits)
            return
        readout_partials[(n, splits)](
            logits, self.scratch.read_f, self.scratch.read_i, V, logits.stride(0), chunk, splits,
            g.mask_id, *g.eos_slots, BLOCK=block, num_warps=launch.READOUT.warps,
        )  # fmt: skip
        readout_merge[(n,)](
            logits, logits.stride(0), self.scratch.read_f, self.scratch.read_i,
            into.ids, into.stats, splits, *g.eos_slots, SPLITS2=launch.MAX_SPLITS, num_warps=1,
        )  # fmt: skip

    def _sample(
        self,
        logits: torch.Tensor,
        into: ReadoutBuffers,
        noise: RowNoise,
        chunk: int,
        splits: int,
    ) -> None:
        n, V = logits.shape
        g, f, i = self.geometry, self.scratch.read_f, self.scratch.read_i
        drawn = noise.heat, noise.key, noise.table
        sample_partials[(n, splits)](
            logits, *drawn, f, i, V, logits.stride(0), chunk, splits, g.mask_id, *g.eos_slots,
            BLOCK=launch.READOUT.block, num_warps=launch.READOUT.warps,
        )  # fmt: skip
        sample_merge[(n,)](
            logits, logits.stride(0), *drawn, f, i, into.ids, into.stats, splits, *g.eos_slots,
            SPLITS2=launch.MAX_SPLITS, num_warps=1,
        )  # fmt: skip

    def settle(
        self,
        state: RoundState,
        plan: RoundPlan,
        rows: PackedRows,
        read: ReadoutBuffers,
        emitted: Emitted,
        decisions: int,
    ) -> None:
        s, p, e = state, plan, emitted
        settle_rounds[(len(s.live),)](
            *(t for name, t in s.tensors().items() if name not in _SAMPLING),
            p.act, p.block, p.kind, p.parent, p.alt, p.branch_block, rows.q_ptr,
            read.ids, read.stats,
            e.tokens, e.count, e.matched, e.hit, e.width, e.finished, e.entropy,
            *self.geometry.eos_slots, decisions, p.kind.shape[1],
            MAX_B=MAX_BLOCK, STOPS=STOP_IDS, num_warps=1,
        )  # fmt: skip


def _power(requests: int, exact: bool) -> int:
    """One compiled width on a device; the interpreter takes the smallest, for speed."""
    return 1 << max(0, requests - 1).bit_length() if exact else launch.MAX_REQUESTS
