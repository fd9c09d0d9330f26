"""The engine's loop over device-resident rounds: the host hands out one round while the next runs.

    step     launch k + 1 | wait for record k | settle k | hand out k
    device   .. round k ..|................ round k + 1 ................

Where the device can choose what comes next (`device_choice`), the next round is launched before the
record of this one is read (`ahead`), or as soon as the record says how large it is. Where only a
planner knows, it decides on the settled record, and its round is launched before anything is
handed out. Either way rounds, tables, pages and events are those of the engine's own loop (`core`),
which still runs every step that this one does not: prompts, wishes beyond the kernels' read-out.
That is asked before every round. Nothing here knows a method.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from recguide_core.engine.build import build_rows
from recguide_core.engine.core import EngineCore, Settled
from recguide_core.engine.events import Event
from recguide_core.engine.resident_state import (
    DeviceChoice,
    chosen,
    fill_plan,
    fill_state,
    readings_of,
    tokens_of,
)
from recguide_core.engine.resident_terms import Terms
from recguide_core.engine.rows import PackedStep, pack
from recguide_core.engine.scheduler import Live, take_entries
from recguide_core.kernels.graphs import GraphReport
from recguide_core.kernels.resident_buffers import Record
from recguide_core.kernels.resident_rounds import ResidentRounds
from recguide_core.records import Act, IntArray, Plan


@dataclass(slots=True)
class _Flight:
    """A round that was launched.

    Attributes:
        lives: its requests by slot; widths: most positions that it may commit of each.
        plan: None as long as only the device knows it; step: its rows, as the host packs them.
    """

    lives: dict[int, Live]
    widths: dict[int, int]
    plan: Plan | None = None
    step: PackedStep | None = None


class ResidentLoop:
    """`core.Resident` over `ResidentRounds`.

    Args:
        core: the engine; its table, scheduler and ledger stay the truth between rounds.
        report: counts rounds, and host steps by reason.
    """

    def __init__(self, core: EngineCore, rounds: ResidentRounds, report: GraphReport) -> None:
        self.core = core
        self.rounds = rounds
        self.report = report
        self._flights: deque[_Flight] = deque()
        self._choice: DeviceChoice | None = None
        self._failed: Exception | None = None
        self._terms = Terms(core)

    def step(self) -> list[Event] | None:
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        while self._flights and not self._alive(self._flights[0]):
            # Everybody in it ended on the host meanwhile.
            self._flights.popleft()
            self.rounds.collect()
        if not self._flights and not self.core.table.decoding.any():
            return None
        began = time.perf_counter()
        try:
            why = self._terms.why_not()
            if not self._flights:
                why = self._begin() if why is None else why
                if why is not None:
                    self.report.on_host(why)
                    return None
            events = self._round(more=why is None)
        except BaseException:
            self._drop()
            raise
        self.report.resident += 1
        self.core.counters.step_seconds += time.perf_counter() - began
        return events

    # -- rounds -----------------------------------------------------------------------------

    def _begin(self) -> str | None:
        """Launch a first round from the engine's tables; the reason when it cannot be."""
        core, rounds = self.core, self.rounds
        plan = core.plan_step()
        if plan.branch_kind.shape[1] > rounds.branches:
            rounds.widen(plan.branch_kind.shape[1])
        who = np.sort(plan.who)
        self._choice = self._terms.choice(who)
        if self._choice is not None:
            rounds.want(who, self._choice.target)
        self._terms.note_sampling()
        fill_state(rounds.start(), core.table, core.scheduler.running, core.ledger.needs)
        rounds.send_state()
        return self._launch(plan)

    def _round(self, *, more: bool) -> list[Event]:
        """Hand out the round launched first; `more`: launch another one beside that."""
        core, choice = self.core, self._choice
        if more and choice is not None and choice.ahead:
            self._launch_ahead()
        record = self.rounds.collect()
        if choice is not None:
            self._follow(chosen(record), record, more=more and not choice.ahead)
        flight = self._flights.popleft()
        plan, step = self._of(flight)
        assert len(step.positions) == record.tokens, "host and device packed different rounds"
        for i, slot in enumerate(plan.who.tolist()):
            if core.scheduler.running.get(slot) is not flight.lives[slot]:
                plan.act[i] = Act.IDLE
        settled = core.settle(plan, step, readings_of(record))
        ended = [s for s in settled.outcome.who.tolist() if record.finished[s]]
        if more and choice is None:
            try:
                self._plan_next(settled, ended)
            except Exception as error:
                # What is settled is handed out all the same.
                self._failed = error
        core.count(step)
        self._open_pages([flight, *self._flights])
        events = core.hand_out(settled)
        assert not any(slot in core.scheduler.running for slot in ended)
        self._open_pages(self._flights)
        return events

    def _of(self, flight: _Flight) -> tuple[Plan, PackedStep]:
        assert flight.plan is not None
        return flight.plan, flight.step or self._packed(flight.plan)

    def _packed(self, plan: Plan) -> PackedStep:
        rows, main = build_rows(plan, [], self.core.table, self.core.mask_id)
        return pack(rows, self.core.table.committed, [], main)

    def _plan_next(self, settled: Settled, ended: list[int]) -> None:
        """Plan and launch on tables that know all but what is about to be handed out."""
        core, table = self.core, self.core.table
        if (ended and core.scheduler.waiting) or self._terms.tight():
            # The next step begins anew, on tables that are complete.
            return
        who, accepted = settled.outcome.who, settled.outcome.matched + 1
        # Gone already as far as planners can see; handing out resets them once more.
        for slot in ended:
            table.reset(slot)
        table.remaining[who] -= accepted
        core.leaving = len(ended)
        before = core.scheduler.preemptions
        try:
            if not table.decoding.any():
                return
            plan = core.plan_step()
            assert core.scheduler.preemptions == before
        finally:
            table.remaining[who] += accepted
            core.leaving = 0
        if plan.branch_kind.shape[1] <= self.rounds.branches:
            self._launch(plan)

    def _launch(self, plan: Plan) -> str | None:
        """Launch what the host planned; the reason when it cannot be."""
        tokens = tokens_of(plan)
        if not tokens.any():
            return "nobody's turn"
        if self.rounds.bucket(int(tokens.sum())) is None:
            return "more tokens or requests than the largest bucket"
        # The device packs by slot.
        order = np.argsort(plan.who)
        plan, tokens = take_entries(plan, order), tokens[order]
        verify = plan.act == Act.VERIFY
        widths = dict(zip(plan.who.tolist(), np.where(verify, plan.block, 0).tolist(), strict=True))
        fill_plan(self.rounds.staged(), plan)
        flight = self._take_off(plan.who, tokens, widths, staged=True)
        # What the host itself needs of the rows is made while the device works on them.
        flight.plan, flight.step = plan, self._packed(plan)
        return None

    def _launch_ahead(self) -> None:
        """Launch what the device will have chosen when the round under way is over."""
        assert self._choice is not None
        table = self.core.table
        who = table.decoding.nonzero()[0]
        target = self.rounds.staged().target[who]
        # A draft may be wider than what its request wants next.
        most = np.maximum(target, np.where(table.has_draft[who], table.draft_block[who], 1))
        if len(who) and self._reserved(who, most):
            self._take_off(who, most, dict(zip(who.tolist(), most.tolist(), strict=True)))

    def _follow(self, plan: Plan, record: Record, *, more: bool) -> None:
        """The device has chosen the round behind the recorded one; `more`: it is to be launched."""
        if len(self._flights) > 1:
            follower = self._flights[1]
            follower.plan = take_entries(plan, np.isin(plan.who, list(follower.lives)))
            return
        core = self.core
        if not more or (core.scheduler.waiting and record.finished.any()):
            return
        plan = take_entries(plan, core.table.decoding[plan.who])
        tokens, widths = tokens_of(plan), np.where(plan.act == Act.VERIFY, plan.block, 0)
        if len(plan.who) and self._reserved(plan.who, widths, tokens):
            by_slot = dict(zip(plan.who.tolist(), widths.tolist(), strict=True))
            self._take_off(plan.who, tokens, by_slot).plan = plan

    def _reserved(self, who: IntArray, widths: IntArray, tokens: IntArray | None = None) -> bool:
        """Whether a bucket holds the round, and pages hold what it may commit of each request."""
        packed = widths if tokens is None else tokens
        if self.rounds.bucket(int(packed.sum())) is None:
            return False
        table, pages = self.core.table, self.core.pages
        before = [sum(f.widths.get(slot, 0) for f in self._flights) for slot in who.tolist()]
        reach = np.minimum(np.array(before) + widths, table.room[who]) + table.committed[who]
        needs = zip(who.tolist(), reach.tolist(), strict=True)
        return all(pages.reserve(slot, need) for slot, need in needs)

    def _take_off(
        self, who: IntArray, tokens: IntArray, widths: dict[int, int], *, staged: bool = False
    ) -> _Flight:
        """Launch; `staged`: the host has written a plan, else the device has one."""
        core, rounds, terms = self.core, self.rounds, self._terms
        running = core.scheduler.running
        rounds.staged().alive[:] = core.table.decoding
        rounds.hold_pages(
            [core.pages.page_list(s) if s in running else () for s in range(rounds.slots)]
        )
        counts = zip(who.tolist(), tokens.tolist(), strict=True)
        rounds.launch(
            int(tokens.sum()),
            int(np.count_nonzero(tokens)),
            None if self._choice is None else self._choice.rule,
            planned=staged,
            sampled=terms.sampled,
            filtered=sum(count for slot, count in counts if slot in terms.filtering),
        )
        flight = _Flight({s: running[s] for s in widths}, widths)
        self._flights.append(flight)
        self._open_pages(self._flights)
        return flight

    # -- pages and faults -------------------------------------------------------------------

    def _alive(self, flight: _Flight) -> bool:
        running = self.core.scheduler.running
        return any(running.get(slot) is live for slot, live in flight.lives.items())

    def _open_pages(self, flights: deque[_Flight] | list[_Flight]) -> None:
        """Name what these rounds may write behind the committed prefixes."""
        pages, widths = self.core.pages, dict[int, int]()
        for flight in flights:
            for slot, live in flight.lives.items():
                if self.core.scheduler.running.get(slot) is live:
                    widths[slot] = widths.get(slot, 0) + flight.widths[slot]
        for slot, width in widths.items():
            pages.begin(slot, min(width, pages.capacity(slot) - pages.committed(slot)))

    def _drop(self) -> None:
        """After a fault: the tables are as of the last round that was settled, and count."""
        self.rounds.forget()
        self._flights.clear()
        for slot in self.core.scheduler.running:
            self.core.pages.commit(slot, 0)
