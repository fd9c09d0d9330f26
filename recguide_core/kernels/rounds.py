"""Whole rounds on the device: state stays there, one small record a step comes back.

A step is forward -> read-out -> settle -> choose -> assemble: it ends with the packed rows of the
next step and its token count. The host waits once a step, for that count and for what was emitted
(`collect`), launches the next step, and hands the tokens out while the device works. `ar`,
`linear`, `overlap` and `tidar` run like this without any host decision.

    state, plan, rows (device)                                      host
    ------------------------------------------------------------    -------------------------
    forward(rows) -> settle(state) -> choose(plan) -> assemble(rows) --> emitted, tokens of next
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from recguide_core.kernels.choose_torch import RoundRule
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


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """A device-resident method.

    Attributes:
        rule: branch layout; target: wanted B of every request, 1 = AR.
        decisions: k, decisions that e_t averages over.
        sampled: some requests may have a temperature.
    """

    rule: RoundRule
    target: int
    decisions: int = MAX_BLOCK
    sampled: bool = False

    @property
    def branches(self) -> int:
        """Branch slots a request needs."""
        return self.target if self.rule.tidar else BRANCHES

    @property
    def most_tokens(self) -> int:
        """Packed tokens of one request in one forward at most."""
        used = self.rule.corrections + self.rule.continuation
        return self.target * (1 + (self.target if self.rule.tidar else used))


class DeviceRounds:
    """Decoding of N prefilled requests in lockstep with a fixed method.

    Args:
        make_ops: kernels for a forward of at most (tokens, requests).
        table: pages of the requests, long enough for all that they will commit.
        graphs: replays a step by the bucket of its token count.
    """

    def __init__(
        self,
        transformer: Transformer,
        make_ops: Callable[[int, int], RoundOps],
        pools: Pools,
        table: PageTable,
        state: RoundState,
        settings: RoundSettings,
        graphs: GraphCache,
    ) -> None:
        device, slots = transformer.device, len(state.live)
        capacity = settings.most_tokens * slots
        key = GraphKey.of(capacity, slots)
        self.capacity = capacity if key is None else key.tokens
        self.settings = settings
        self.state = state
        self.table = table
        self.pools = pools
        self.graphs = graphs
        self.plan = RoundPlan.sized(slots, device, settings.branches)
        self.rows = PackedRows.sized(self.capacity, slots, device)
        self.read = ReadoutBuffers.sized(self.capacity, device)
        size = Emitted.flat_size(slots)
        self._flat = torch.zeros(size, dtype=torch.int32, device=device)
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.emitted = Emitted.over(self._flat, slots)
        self.target = torch.full((slots,), settings.target, dtype=torch.int32, device=device)
        self._transformer = transformer
        self._make_ops = make_ops
        self._head = OutputHead(transformer.weights.head, self.capacity)
        self._noise = NoiseSource(device) if settings.sampled else None
        self._filters = settings.sampled and any_filter(state)
        self._forwards: dict[int, DeviceForward] = {}
        self._choose_and_assemble(self._forward(self.capacity))
        self.tokens = int(self.rows.q_ptr[-1])

    @property
    def done(self) -> bool:
        return self.tokens == 0

    def launch(self) -> None:
        """Start a step and the copy of its record; returns before the device is done."""
        key = GraphKey.of(self.tokens, len(self.state.live))
        tokens = self.capacity if key is None else min(key.tokens, self.capacity)
        forward = self._forward(tokens)
        if key is None:
            self.graphs.run_eager(lambda: self._run(forward, tokens), "more tokens than a bucket")
        else:
            self.graphs.run(key, lambda: self._run(forward, tokens))
        self._host.copy_(self._flat, non_blocking=True)

    def collect(self) -> Emitted:
        """Wait for the launched step; its record on the host, the caller's to keep."""
        if self._flat.is_cuda:
            torch.cuda.current_stream().synchronize()
        record = Emitted.over(self._host.clone(), len(self.state.live))
        self.tokens = int(record.next_tokens)
        return record

    def step(self) -> Emitted:
        """Run one step; afterwards `tokens` is the size of the next one."""
        self.launch()
        return self.collect()

    def end(self, slots: Sequence[int]) -> None:
        """Requests that ended on the host: a stop string, an abort, a client that left.

        From the next launch on they emit nothing; rows that were packed for them already run
        once more and leave no trace in the record.
        """
        self.state.live[list(slots)] = 0

    def _forward(self, tokens: int) -> DeviceForward:
        if tokens not in self._forwards:
            ops = self._make_ops(tokens, len(self.state.live))
            self._forwards[tokens] = DeviceForward(self._transformer, ops, tokens)
        return self._forwards[tokens]

    def _run(self, forward: DeviceForward, tokens: int) -> None:
        rows, read = self.rows.head(tokens), self.read.rows(0, tokens)
        noise = None
        if self._noise is not None:
            noise = self._noise.of(rows, self.state, tokens if self._filters else 0)
        forward.read(rows, self.table, self.state.committed, self.pools, self._head, read, noise)
        forward.ops.settle(
            self.state, self.plan, self.rows, self.read, self.emitted, self.settings.decisions
        )
        self._choose_and_assemble(forward)

    def _choose_and_assemble(self, forward: DeviceForward) -> None:
        forward.ops.choose(self.state, self.target, self.settings.rule, self.plan)
        forward.ops.assemble(self.state, self.plan, self.rows)
        self.emitted.next_tokens.copy_(self.rows.q_ptr[-1:])
