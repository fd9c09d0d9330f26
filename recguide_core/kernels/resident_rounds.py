"""Whole rounds on the device for requests that come and go: the engine's own loop runs these.

State, plan and packed rows lie in fixed buffers, so one graph per (token bucket, variant) replays
a round. A round is launched with what the host says about it in one small upload, and leaves one
record, which is read when its event has passed. Two rounds may be under way: what the host writes
and reads lies in two sets of pinned buffers that take turns.

    host     alive, plan or wanted blocks, pages (one copy up)            record (one copy down)
    device   assemble(rows) -> forward(rows) -> settle(state) -> [choose] ----->

With a `RoundRule` the device also chooses what everybody does in the next round, which then needs
no plan of the host.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from recguide_core.kernels import launch
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.device_forward import DeviceForward, Pools
from recguide_core.kernels.graphs import GraphCache, GraphKey
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import PageTable, RoundOps
from recguide_core.kernels.resident_buffers import Record, Staged, Turn, aligned
from recguide_core.kernels.round_state import (
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.kernels.row_noise import NoiseSource
from recguide_core.model.transformer import Transformer
from recguide_core.records import MAX_BLOCK

CAPACITY = launch.TOKEN_BUCKETS[-1]
IN_FLIGHT = 2
"""Rounds that may be launched and not yet collected."""


class ResidentRounds:
    """Rounds of at most N requests over the pool of an engine.

    Args:
        make_ops: kernels for a forward of at most (tokens, requests).
        pages: of the pool; page: tokens of one.
        head: makes logits; shared with whatever else runs on the device.
        branches: branch slots of a request in a plan; decisions: k of e_t.
    """

    def __init__(
        self,
        transformer: Transformer,
        make_ops: Callable[[int, int], RoundOps],
        pools: Pools,
        head: OutputHead,
        graphs: GraphCache,
        *,
        slots: int,
        pages: int,
        page: int,
        branches: int,
        decisions: int = MAX_BLOCK,
    ) -> None:
        device = transformer.device
        self.slots = slots
        self.graphs = graphs
        self._transformer, self._make_ops = transformer, make_ops
        self._pools, self._head, self._decisions = pools, head, decisions
        self._noise: NoiseSource | None = None
        self._forwards: dict[tuple[int, int], DeviceForward] = {}
        self._rows = PackedRows.sized(CAPACITY, slots, device)
        self._state_flat = self._ints(RoundState.flat_size(slots))
        self._state_up = torch.zeros(
            len(self._state_flat), dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        self.state = RoundState.over(self._state_flat, slots)
        # page_ptr, then the pages themselves.
        self._first_page = aligned(slots + 1)
        self._page_flat = self._ints(self._first_page + max(1, pages))
        self._table = PageTable(
            self._page_flat[self._first_page :], self._page_flat[: slots + 1], page
        )
        self._launched: deque[Turn] = deque()
        self._held: list[int] = []
        self.widen(branches)

    def widen(self, branches: int) -> None:
        """Give plans so many branch slots; graphs of the old width are used no more."""
        assert not self._launched
        slots, plan = self.slots, RoundPlan.flat_size(self.slots, branches)
        self.branches = branches
        self._up = self._ints(2 * slots + plan)
        self._alive, self._target = self._up[:slots], self._up[slots : 2 * slots]
        self._plan_flat = self._up[2 * slots :]
        self._plan = RoundPlan.over(self._plan_flat, slots, branches)
        # The next plan, what was emitted, and behind them the read-out of each bucket.
        self._emitted_at = aligned(plan)
        self._read_at = aligned(self._emitted_at + Emitted.flat_size(slots))
        self._down = self._ints(self._stats_at(CAPACITY) + 5 * CAPACITY)
        self._emitted = self._emitted_in(self._down)
        sizes = len(self._up), len(self._page_flat), len(self._down)
        pinned = self._up.is_cuda
        self._turns = [Turn(*sizes, slots, branches, pinned) for _ in range(IN_FLIGHT)]
        self._next = 0

    def _ints(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self._transformer.device)

    def _emitted_in(self, down: torch.Tensor) -> Emitted:
        size = Emitted.flat_size(self.slots)
        return Emitted.over(down[self._emitted_at : self._emitted_at + size], self.slots)

    def start(self) -> RoundState:
        """State to be filled by the host before `send_state`; nothing may be under way."""
        assert not self._launched
        self._held = []
        return RoundState.over(self._state_up, self.slots)

    def send_state(self) -> None:
        """What `start` gave out is where the requests stand."""
        self._state_flat.copy_(self._state_up, non_blocking=True)

    def staged(self) -> Staged:
        """What to say about the next round; filled by the caller, then `launch`."""
        assert len(self._launched) < IN_FLIGHT
        return self._turns[self._next].staged

    def want(self, who: npt.NDArray[np.int64], target: npt.NDArray[np.int64]) -> None:
        """Wanted B of requests [n] wherever the device chooses, until they are told otherwise."""
        for turn in self._turns:
            turn.staged.target[who] = target

    def hold_pages(self, lists: Sequence[Sequence[int]]) -> None:
        """Pages of every slot, for the round that `staged` is about.

        From one `start` to the next a slot's list only grows, or ends for good.
        """
        held = [len(pages) for pages in lists]
        if held == self._held:
            return
        self._held = held
        host = self._turns[self._next].pages.numpy()
        host[0], host[1 : self.slots + 1] = 0, np.cumsum(held)
        flat = [page for pages in lists for page in pages]
        host[self._first_page : self._first_page + len(flat)] = flat
        self._page_flat.copy_(self._turns[self._next].pages, non_blocking=True)

    def bucket(self, tokens: int) -> int | None:
        """Packed tokens that a round of `tokens` is run with; None when it is too large."""
        key = GraphKey.of(tokens, self.slots)
        return None if key is None else key.tokens

    def launch(
        self,
        tokens: int,
        requests: int,
        rule: RoundRule | None = None,
        *,
        planned: bool = True,
        sampled: bool = False,
        filtered: int = 0,
    ) -> None:
        """Start the staged round and the copy of its record; returns before the device is done.

        Args:
            tokens, requests: packed tokens and those who have some, at least as in the round.
            rule: how the device chooses the round after this one; None leaves that to the host.
            planned: run the staged plan; False runs what the device chose in the last round.
            sampled: a request has a temperature; filtered: most tokens of requests with top-k,
                top-p or min-p.
        """
        size = launch.bucket(filtered, launch.TOKEN_BUCKETS) if filtered else 0
        assert size is not None
        variant = f"round {self.branches} {rule} {sampled or filtered > 0} {size}"
        key = GraphKey.of(tokens, requests, variant)
        assert key is not None, "more tokens or requests than the largest bucket"
        if (sampled or filtered) and self._noise is None:
            self._noise = NoiseSource(self._transformer.device)
        turn = self._turns[self._next]
        self._next = (self._next + 1) % IN_FLIGHT
        sent = len(self._up) if planned else 2 * self.slots
        noise = self._noise if sampled or filtered else None
        size = min(size, key.tokens)
        forward = self._forward(key)
        with torch.inference_mode():
            self._up[:sent].copy_(turn.up[:sent], non_blocking=True)
            self.graphs.run(key, lambda: self._run(forward, key.tokens, rule, noise, size))
            # Only what this bucket wrote.
            used = self._stats_at(key.tokens) + 5 * key.tokens
            turn.down[:used].copy_(self._down[:used], non_blocking=True)
        if turn.event is not None:
            turn.event.record()
        turn.tokens = key.tokens
        self._launched.append(turn)

    def collect(self) -> Record:
        """Wait for the round launched first; its record."""
        turn = self._launched.popleft()
        if turn.event is not None:
            turn.event.synchronize()
        t, at, stats_at = turn.tokens, self._read_at, self._stats_at(turn.tokens)
        host = turn.down.numpy()
        emitted = self._emitted_in(turn.down)
        used = int(emitted.next_tokens)
        assert used <= t, "a round had more tokens than it was launched with"
        ids = host[at : at + 2 * t].reshape(t, 2)[:used]
        stats = host[stats_at : stats_at + 5 * t].view(np.float32).reshape(t, 5)[:used]
        plan = RoundPlan.over(turn.down[: len(self._plan_flat)], self.slots, self.branches)
        return Record(plan, emitted.finished.numpy(), used, ids, stats)

    def forget(self) -> None:
        """Drop what is under way, after a fault; the next round begins with `start`."""
        self._launched.clear()
        if self._up.is_cuda:
            # Copies from the pinned buffers may still be due; a lost device tells by itself.
            with contextlib.suppress(RuntimeError):
                torch.cuda.current_stream().synchronize()

    def _forward(self, key: GraphKey) -> DeviceForward:
        # Who has no tokens takes no tiles: the kernels are chosen for those who have.
        size = (key.tokens, key.requests)
        if size not in self._forwards:
            ops = self._make_ops(*size)
            # Rounds run one after another, so those of a token bucket share its attention output.
            like = next((f for (t, _), f in self._forwards.items() if t == key.tokens), None)
            mixed = None if like is None else like.mixed
            self._forwards[size] = DeviceForward(self._transformer, ops, key.tokens, mixed=mixed)
        return self._forwards[size]

    def _run(
        self,
        forward: DeviceForward,
        tokens: int,
        rule: RoundRule | None,
        noise: NoiseSource | None,
        filtered: int,
    ) -> None:
        ops, state = forward.ops, self.state
        state.live.mul_(self._alive)
        ops.assemble(state, self._plan, self._rows)
        rows, read = self._rows.head(tokens), self._read(tokens)
        drawn = None if noise is None else noise.of(rows, state, filtered)
        forward.read(rows, self._table, state.committed, self._pools, self._head, read, drawn)
        ops.settle(state, self._plan, self._rows, read, self._emitted, self._decisions)
        # Here the record's own size: the step behind it is not known yet.
        self._emitted.next_tokens.copy_(self._rows.q_ptr[-1:])
        if rule is not None:
            ops.choose(state, self._target, rule, self._plan)
            self._down[: len(self._plan_flat)].copy_(self._plan_flat)

    def _read(self, tokens: int) -> ReadoutBuffers:
        """Read-out of a bucket, where its record is copied from."""
        at, stats_at = self._read_at, self._stats_at(tokens)
        ids = self._down[at : at + 2 * tokens].view(tokens, 2)
        stats = self._down[stats_at : stats_at + 5 * tokens].view(torch.float32)
        return ReadoutBuffers(ids, stats.view(tokens, 5))

    def _stats_at(self, tokens: int) -> int:
        return self._read_at + aligned(2 * tokens)
