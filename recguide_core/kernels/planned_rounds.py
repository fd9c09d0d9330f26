"""Rounds on the device whose acts the host decides: adaptive blocks, priced branches.

`rounds.DeviceRounds` needs no host decision, which serves fixed methods. Here state stays on the
device as well, but a step ends with one copy of it, any planner decides over that copy, and the
next step begins with one upload of the plan. What was emitted is handed out while the next step
runs.

    host     plan (one copy up)                                     state, emitted (one copy down)
    device   assemble(plan) -> forward(rows) -> settle(state) ----------->
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from recguide_core.kernels.device_forward import DeviceForward, Pools
from recguide_core.kernels.graphs import GraphCache, GraphKey
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import PageTable, RoundOps
from recguide_core.kernels.round_state import (
    BRANCHES,
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.kernels.row_noise import NoiseSource, any_filter
from recguide_core.model.transformer import Transformer
from recguide_core.records import MAX_BLOCK


class Decide(Protocol):
    """Fills `plan` for every slot from host copies of the state and of what was just emitted."""

    def __call__(self, state: RoundState, emitted: Emitted, plan: RoundPlan) -> None: ...


class PlannedRounds:
    """Decoding of N prefilled requests, planned by the host.

    Args:
        make_ops: kernels for a forward of at most (tokens, requests).
        table: pages of the requests, long enough for all that they will commit.
        state: where the requests stand; copied, the loop's own is `state` of this object.
        decide: the method; slots that it gives no act idle.
        graphs: replays a step by the bucket of its token count.
        decisions: k, decisions that e_t averages over.
        sampled: some requests may have a temperature.
    """

    def __init__(
        self,
        transformer: Transformer,
        make_ops: Callable[[int, int], RoundOps],
        pools: Pools,
        table: PageTable,
        state: RoundState,
        decide: Decide,
        graphs: GraphCache,
        decisions: int = MAX_BLOCK,
        *,
        sampled: bool = False,
    ) -> None:
        device, slots = transformer.device, len(state.live)
        capacity = slots * MAX_BLOCK * (1 + BRANCHES)
        key = GraphKey.of(capacity, slots)
        self.capacity = capacity if key is None else key.tokens
        self.table, self.pools, self.graphs = table, pools, graphs
        self.decisions = decisions
        self._decide = decide
        self._transformer = transformer
        self._make_ops = make_ops
        self._head = OutputHead(transformer.weights.head, self.capacity)
        self._noise = NoiseSource(device) if sampled else None
        self._filters = sampled and any_filter(state)
        self._forwards: dict[int, DeviceForward] = {}
        self.rows = PackedRows.sized(self.capacity, slots, device)
        self.read = ReadoutBuffers.sized(self.capacity, device)

        cut = RoundState.flat_size(slots)
        pinned = device.type == "cuda"
        self._flat = torch.zeros(cut + Emitted.flat_size(slots), dtype=torch.int32, device=device)
        self._host = torch.zeros(len(self._flat), dtype=torch.int32, pin_memory=pinned)
        self.state = RoundState.over(self._flat[:cut], slots)
        self.emitted = Emitted.over(self._flat[cut:], slots)
        self._cut = cut
        size = RoundPlan.flat_size(slots)
        self._plan_flat = torch.zeros(size, dtype=torch.int32, device=device)
        self._plan_host = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self.plan = RoundPlan.over(self._plan_flat, slots)
        self.state.copy_(state)
        self._host.copy_(self._flat)
        self.tokens = 0
        self._ended: set[int] = set()
        self._settle_on_a_plan()

    @property
    def done(self) -> bool:
        return self.tokens == 0

    def launch(self) -> None:
        """Start the planned step and the copy of its results."""
        self._plan_flat.copy_(self._plan_host, non_blocking=True)
        key = GraphKey.of(self.tokens, len(self.state.live))
        tokens = self.capacity if key is None else min(key.tokens, self.capacity)
        forward = self._forward(tokens)
        if key is None:
            self.graphs.run_eager(lambda: self._run(forward, tokens), "more tokens than a bucket")
        else:
            self.graphs.run(key, lambda: self._run(forward, tokens))
        self._host.copy_(self._flat, non_blocking=True)

    def collect(self) -> Emitted:
        """Wait for the launched step and plan the next; the record is the caller's to keep."""
        if self._flat.is_cuda:
            torch.cuda.current_stream().synchronize()
        self._settle_on_a_plan()
        return Emitted.over(self._host[self._cut :].clone(), len(self.state.live))

    def step(self) -> Emitted:
        """Run one step; afterwards `tokens` is the size of the next one."""
        self.launch()
        return self.collect()

    def end(self, slots: Sequence[int]) -> None:
        """Requests that ended on the host; see `DeviceRounds.end`."""
        # The plan in place may be on its way up: it is not touched.
        self.state.live[list(slots)] = 0
        self._ended.update(slots)

    def _settle_on_a_plan(self) -> None:
        slots = len(self.state.live)
        state = RoundState.over(self._host[: self._cut], slots)
        # A copy that was already on its way does not know of them.
        state.live[list(self._ended)] = 0
        plan = RoundPlan.over(self._plan_host, slots)
        self._decide(state, Emitted.over(self._host[self._cut :], slots), plan)
        branches = torch.where(plan.kind >= 0, plan.branch_block, 0).sum()
        self.tokens = int(plan.block.sum() + branches)

    def _forward(self, tokens: int) -> DeviceForward:
        if tokens not in self._forwards:
            ops = self._make_ops(tokens, len(self.state.live))
            self._forwards[tokens] = DeviceForward(self._transformer, ops, tokens)
        return self._forwards[tokens]

    def _run(self, forward: DeviceForward, tokens: int) -> None:
        ops = forward.ops
        ops.assemble(self.state, self.plan, self.rows)
        rows, read = self.rows.head(tokens), self.read.rows(0, tokens)
        noise = None
        if self._noise is not None:
            noise = self._noise.of(rows, self.state, tokens if self._filters else 0)
        forward.read(rows, self.table, self.state.committed, self.pools, self._head, read, noise)
        ops.settle(self.state, self.plan, self.rows, self.read, self.emitted, self.decisions)
