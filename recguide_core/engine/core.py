"""The engine: continuous batching over packed rows, one forward a step, any method.

    plan (policy) -> rows -> forward -> judge -> advance -> emit

The loop does not know methods: a planner says which rows each request gets. It does not know
tensors either: an executor runs the rows. Every ending of a request (stop, length, abort, error)
goes through `_end`, which gives its slot and pages back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from recguide_core.engine.batching import Batching, join_plans
from recguide_core.engine.build import build_rows
from recguide_core.engine.checks import check_request
from recguide_core.engine.clock import Clock, WallClock
from recguide_core.engine.events import Counters, Event, Observer, RoundView
from recguide_core.engine.ledger import Ledger
from recguide_core.engine.planners import Planner
from recguide_core.engine.readings import Executor, StepReadings
from recguide_core.engine.rows import PackedStep, pack, shapes_of
from recguide_core.engine.scheduler import Scheduler
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.settle import (
    Verified,
    advance,
    judge,
    set_seed,
    take_over,
)
from recguide_core.errors import UsageError
from recguide_core.pages import PageTable
from recguide_core.records import (
    Act,
    Finish,
    FloatArray,
    IntArray,
    Outcome,
    Plan,
    Request,
    RequestTable,
)


class Resident(Protocol):
    """A loop that runs whole rounds on the device, where requests and method allow it."""

    def step(self) -> list[Event] | None:
        """Events of a round, or None when the next step is the host's."""


@dataclass(slots=True)
class Settled:
    """Rounds that have moved the table and are still to be handed out.

    Attributes:
        sources: of the verified drafts [m]; margins: of their tokens [m, MAX_BLOCK].
    """

    outcome: Outcome
    verified: Verified
    sources: IntArray
    margins: FloatArray
    readings: StepReadings


class EngineCore:
    """The loop over an executor and a page table; `engine.Engine` joins it to a model.

    Args:
        planners: `Request.planner` indexes them; the first is the default.
        context: longest sequence (prompt and output) in tokens.
        vocab: token ids of prompts are checked against it; None = not known.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        pages: PageTable,
        planners: Sequence[Planner],
        settings: EngineSettings,
        context: int,
        mask_id: int,
        eos_ids: frozenset[int],
        clock: Clock | None = None,
        vocab: int | None = None,
    ) -> None:
        self.executor = executor
        self.pages = pages
        self.planners = list(planners)
        self.settings = settings
        self.context = context
        self.mask_id = mask_id
        self.eos_ids = eos_ids
        self.vocab = vocab
        self.clock: Clock = clock or WallClock()
        self.table = RequestTable.sized(settings.slots)
        self.scheduler = Scheduler(settings, self.table, pages, context)
        self.batching = Batching(settings)
        self.ledger = Ledger(self.table, self.scheduler, eos_ids)
        self.counters = Counters()
        self.observers: list[Observer] = []
        self.resident: Resident | None = None
        self.leaving = 0
        self._ended: list[Event] = []
        self._aborts: list[str] = []
        self._stepping = False

    # -- requests ---------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing to do and nothing to report."""
        return self.scheduler.idle and not self._ended

    @property
    def load(self) -> int:
        """Nominal concurrency C: requests running or waiting, at most `max_requests`."""
        busy = len(self.scheduler.running) - self.leaving + len(self.scheduler.waiting)
        return min(self.settings.max_requests, max(1, busy))

    def submit(self, request: Request, fixed_block: int = 0) -> None:
        """Queue a request.

        Args:
            fixed_block: block size that this request insists on, 0 = the planner's choice.

        Raises:
            UsageError: the request can never run (empty, too long, duplicate key, ...).
        """
        check_request(
            request,
            fixed_block,
            context=self.context,
            pages=self.pages,
            planners=len(self.planners),
            vocab=self.vocab,
        )
        if request.key in self.ledger.by_key:
            raise UsageError(
                f"A request named '{request.key}' is running.", "Give every request its own key."
            )
        room = self.context - len(request.prompt)
        self.ledger.enter(replace(request, max_tokens=min(request.max_tokens, room)), fixed_block)

    def abort(self, key: str) -> bool:
        """End a request; its end is reported by the next `step`. False if unknown.

        Called from within a step (a stop rule, an observer) it takes effect when the step is over.
        """
        live = self.ledger.by_key.get(key)
        if live is None:
            return False
        if self._stepping:
            self._aborts.append(key)
        else:
            self._ended.append(Event(key, [], [], finished=self.ledger.end(live, Finish.ABORT)))
        return True

    # -- the loop ---------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one forward and report what came of it; an empty list when there is none to run.

        An executor that raises leaves the engine as it was before its forward: the step can be
        run again, or its requests aborted.
        """
        events, self._ended = self._ended, []
        self._stepping = True
        try:
            events += self._step()
        except BaseException:
            self._ended = events + self._ended
            raise
        finally:
            self._stepping = False
            aborts, self._aborts = self._aborts, []
            for key in aborts:
                self.abort(key)
        return events

    def _step(self) -> list[Event]:
        events = None if self.resident is None else self.resident.step()
        return self._host_step() if events is None else events

    def _host_step(self) -> list[Event]:
        began = time.perf_counter()
        for live in self.scheduler.admit():
            self.ledger.note_needs(live)
            self.batching.opened(live.slot)
        plan = self.plan_step()
        chunks = self.scheduler.chunks(
            {i: planner.first_draft for i, planner in enumerate(self.planners)}
        )
        if not chunks and not any(plan.act.tolist()):
            return []
        rows, main = build_rows(plan, chunks, self.table, self.mask_id)
        step = pack(rows, self.table.committed, chunks, main)
        readings = self._execute(step)
        self.count(step)
        events = self.ledger.settle_chunks(step, readings)
        events += self.hand_out(self.settle(plan, step, readings))
        self.counters.step_seconds += time.perf_counter() - began
        return events

    def count(self, step: PackedStep) -> None:
        """Charge and count the forwards of a step."""
        for shape in shapes_of(step):
            self.clock.charge(shape)
            self.counters.count(shape)
        self.counters.steps += 1

    def _execute(self, step: PackedStep) -> StepReadings:
        slots, first = step.slots.tolist(), step.offset.tolist()
        for i, slot in enumerate(slots):
            self.pages.begin(slot, first[i + 1] - first[i])
        try:
            return self.executor.execute(step, self.ledger.needs)
        except BaseException:
            for slot in slots:
                self.pages.commit(slot, 0)
            raise

    def run(self) -> list[Event]:
        """Step until idle; all events."""
        events = []
        while not self.idle:
            events += self.step()
        return events

    def plan_step(self) -> Plan:
        """What the requests that can draft or verify do next, with pages for it."""
        began = time.perf_counter()
        who = self.scheduler.ready()
        asked = self.table.planner.take(who)
        wanted = set(asked.tolist())
        if len(wanted) < 2:
            index = min(wanted, default=0)
            plan = self.planners[index].plan(self.table, who, self.load)
        else:
            plans = [
                self.planners[index].plan(self.table, who[asked == index], self.load)
                for index in sorted(wanted)
            ]
            plan = join_plans(plans)
        plan = self.scheduler.fit(self.batching.select(plan))
        self.ledger.drop_needs()
        self.counters.plan_seconds += time.perf_counter() - began
        return plan

    def settle(self, plan: Plan, step: PackedStep, readings: StepReadings) -> Settled:
        """Judge the rounds of a step and move the table; `hand_out` is the rest of them."""
        table = self.table
        outcome, verified = judge(plan, step, readings, table, self.settings.entropy_positions)
        if self.observers and len(outcome.who):
            keys = {s: live.request.key for s, live in self.scheduler.running.items()}
            view = RoundView(table, plan, step, readings, outcome, verified, keys)
            for observer in self.observers:
                observer.on_rounds(view)
        who = outcome.who
        settled = Settled(
            outcome,
            verified,
            sources=table.draft_source.take(who) * table.has_draft.take(who),
            margins=table.margin.take(who, axis=0),
            readings=readings,
        )
        if len(who):
            advance(table, outcome)
        take_over(table, plan, step, outcome, verified, readings)
        if len(who) < len(plan.who):
            drafting = (plan.act == Act.DRAFT) | (plan.act == Act.DRAFTER)
            for slot in plan.who[drafting].tolist():
                self.pages.commit(slot, 0)
                self.scheduler.running[slot].forwards += 1
        if len(who):
            set_seed(table, who, verified.tokens[np.arange(len(who)), outcome.matched])
            self.counters.rounds += len(who)
            self.counters.matched += sum(outcome.matched.tolist())
        return settled

    def hand_out(self, settled: Settled) -> list[Event]:
        """Emit what settled rounds brought; requests end here."""
        if not len(settled.outcome.who):
            return []
        return self.ledger.emit_rounds(
            settled.outcome,
            settled.verified,
            settled.sources,
            settled.margins,
            settled.readings,
        )
