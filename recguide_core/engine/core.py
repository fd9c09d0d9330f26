"""The engine: continuous batching over packed rows, one forward a step, any method.

    plan (policy) -> rows -> forward -> judge -> advance -> emit

The loop does not know methods: a planner says which rows each request gets. It does not know
tensors either: an executor runs the rows. Every ending of a request (stop, length, abort, error)
goes through `_end`, which gives its slot and pages back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from recguide_core.engine import emit
from recguide_core.engine.batching import Batching
from recguide_core.engine.clock import Clock, WallClock
from recguide_core.engine.events import Counters, Event, Observer, RoundView
from recguide_core.engine.planners import Planner
from recguide_core.engine.readings import Executor, ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, PrefillChunk, build_rows, pack, shapes_of
from recguide_core.engine.scheduler import Live, Scheduler
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.settle import (
    Verified,
    advance,
    judge,
    set_seed,
    take_drafts,
    take_over,
)
from recguide_core.errors import UsageError
from recguide_core.pages import PageTable
from recguide_core.records import (
    Act,
    Finish,
    Finished,
    IntArray,
    Origin,
    Outcome,
    Plan,
    Request,
    RequestTable,
    Source,
)


class EngineCore:
    """The loop over an executor and a page table; `engine.Engine` joins it to a model.

    Args:
        planners: `Request.planner` indexes them; the first is the default.
        context: longest sequence (prompt and output) in tokens.
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
    ) -> None:
        self.executor = executor
        self.pages = pages
        self.planners = list(planners)
        self.settings = settings
        self.context = context
        self.mask_id = mask_id
        self.eos_ids = eos_ids
        self.clock: Clock = clock or WallClock()
        self.table = RequestTable.sized(settings.slots)
        self.scheduler = Scheduler(settings, self.table, pages, context)
        self.batching = Batching(settings)
        self.needs = ReadoutNeeds()
        self.counters = Counters()
        self.observers: list[Observer] = []
        self._by_key: dict[str, Live] = {}
        self._ended: list[Event] = []

    # -- requests ---------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing to do and nothing to report."""
        return self.scheduler.idle and not self._ended

    @property
    def load(self) -> int:
        """Nominal concurrency C: requests running or waiting, at most `max_requests`."""
        busy = len(self.scheduler.running) + len(self.scheduler.waiting)
        return min(self.settings.max_requests, max(1, busy))

    def submit(self, request: Request, fixed_block: int = 0) -> None:
        """Queue a request.

        Args:
            fixed_block: block size that this request insists on, 0 = the planner's choice.

        Raises:
            UsageError: the request can never run (empty, too long, duplicate key, ...).
        """
        self._check(request)
        room = self.context - len(request.prompt)
        request.max_tokens = min(request.max_tokens, room)
        live = Live(request, np.asarray(request.prompt, dtype=np.int64), fixed_block=fixed_block)
        self._by_key[request.key] = live
        self.scheduler.add(live)

    def abort(self, key: str) -> bool:
        """End a request at once; its end is reported by the next `step`. False if unknown."""
        live = self._by_key.get(key)
        if live is None:
            return False
        self._ended.append(Event(key, [], [], finished=self._end(live, Finish.ABORT)))
        return True

    def _check(self, request: Request) -> None:
        length = len(request.prompt)
        if length < 1:
            raise UsageError("The prompt is empty.", "Send at least one token.")
        if request.max_tokens < 1:
            raise UsageError(f"max_tokens is {request.max_tokens}.", "Ask for at least one token.")
        if length >= self.context:
            raise UsageError(
                f"The prompt has {length} tokens; the context holds {self.context} and at least "
                "one must be left for the answer.",
                "Shorten the prompt or use a model with a longer context.",
            )
        needed = min(length + request.max_tokens, self.context)
        if self.pages.pages_for(needed) > self.pages.pages:
            raise UsageError(
                f"One request of {needed} tokens does not fit into the KV pool of "
                f"{self.pages.pages * self.pages.page_size} tokens.",
                "Raise --kv-tokens, or lower --max-tokens.",
            )
        if request.key in self._by_key:
            raise UsageError(
                f"A request named '{request.key}' is running.", "Give every request its own key."
            )
        if not 0 <= request.planner < len(self.planners):
            raise UsageError(
                f"There is no planner {request.planner}.", f"Use 0..{len(self.planners) - 1}."
            )

    # -- the loop ---------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one forward and report what came of it; an empty list when there is none to run."""
        events, self._ended = self._ended, []
        began = time.perf_counter()
        for live in self.scheduler.admit():
            self._note_needs(live)
            self.batching.waited[live.slot] = 0
        plan = self._plan()
        chunks = self.scheduler.chunks(
            {i: planner.first_draft for i, planner in enumerate(self.planners)}
        )
        if not chunks and not (plan.act != Act.IDLE).any():
            return events
        rows, main = build_rows(plan, chunks, self.table, self.mask_id)
        step = pack(rows, self.table.committed, chunks, main)
        for slot, count in zip(step.slots.tolist(), np.diff(step.offset).tolist(), strict=True):
            self.pages.begin(slot, count)
        readings = self.executor.execute(step, self.needs)
        for shape in shapes_of(step):
            self.clock.charge(shape)
            self.counters.count(shape)
        self.counters.steps += 1
        events += self._settle(plan, step, readings)
        self.counters.step_seconds += time.perf_counter() - began
        return events

    def run(self) -> list[Event]:
        """Step until idle; all events."""
        events = []
        while not self.idle:
            events += self.step()
        return events

    def _plan(self) -> Plan:
        began = time.perf_counter()
        who = self.scheduler.ready()
        asked = self.table.planner[who]
        if len(self.planners) == 1 or not len(who) or (asked == asked[0]).all():
            index = int(asked[0]) if len(who) else 0
            plan = self.planners[index].plan(self.table, who, self.load)
        else:
            plans = [
                self.planners[index].plan(self.table, who[asked == index], self.load)
                for index in np.unique(asked).tolist()
            ]
            plan = join_plans(plans)
        plan = self.scheduler.fit(self.batching.select(plan))
        self.counters.plan_seconds += time.perf_counter() - began
        return plan

    def _settle(self, plan: Plan, step: PackedStep, readings: StepReadings) -> list[Event]:
        table = self.table
        events = self._settle_chunks(step, readings)
        outcome, verified = judge(plan, step, readings, table, self.settings.entropy_positions)
        if self.observers and len(outcome.who):
            keys = {s: live.request.key for s, live in self.scheduler.running.items()}
            view = RoundView(table, plan, step, readings, outcome, verified, keys)
            for observer in self.observers:
                observer.on_rounds(view)
        sources = table.draft_source[outcome.who]
        sources[~table.has_draft[outcome.who]] = Source.NONE
        margins = table.margin[outcome.who] if len(outcome.who) else table.margin[:0]
        advance(table, outcome)
        take_over(table, plan, step, outcome, verified, readings)
        if len(outcome.who):
            last = verified.tokens[np.arange(len(outcome.who)), outcome.matched]
            set_seed(table, outcome.who, last)
        drafting = (plan.act == Act.DRAFT) | (plan.act == Act.DRAFTER)
        for slot in plan.who[drafting].tolist():
            self.pages.commit(slot, 0)
            self.scheduler.running[slot].forwards += 1
        self.counters.rounds += len(outcome.who)
        self.counters.matched += int(outcome.matched.sum())
        for i in range(len(outcome.who)):
            events.append(self._emit_round(i, outcome, verified, sources, margins[i], readings))
        return events

    def _emit_round(
        self,
        i: int,
        outcome: Outcome,
        verified: Verified,
        sources: IntArray,
        margins: np.ndarray,
        readings: StepReadings,
    ) -> Event:
        slot, matched = int(outcome.who[i]), int(outcome.matched[i])
        width, live = int(outcome.width[i]), self.scheduler.running[int(outcome.who[i])]
        self.pages.commit(slot, matched + 1)
        live.rounds += 1
        live.forwards += 1
        live.reused += int(sources[i] not in (Source.NONE, Source.DRAFT, Source.DRAFTER))
        window = verified.tokens[i, : matched + 1].tolist()
        event = self._emit(
            live,
            window,
            emit.origins_of(width, matched, matched + 1),
            int(verified.read_from[i]),
            readings,
            faulty=bool(np.isnan(verified.entropy[i, : matched + 1]).any()),
        )
        live.round_tokens += len(event.tokens)
        event.block, event.accepted, event.source = width, matched + 1, int(sources[i])
        event.margins = [*margins[1 : matched + 1].tolist(), 1.0][: len(event.tokens)]
        event.entropy, event.hit = float(outcome.entropy[i]), int(outcome.hit[i])
        if event.finished is not None:
            event.finished.round_tokens = live.round_tokens
        return event

    def _settle_chunks(self, step: PackedStep, readings: StepReadings) -> list[Event]:
        events = []
        for row, chunk in _chunk_rows(step):
            live = self.scheduler.running[chunk.slot]
            self.pages.commit(chunk.slot, len(chunk.tokens))
            live.prefilled += len(chunk.tokens)
            self.table.committed[chunk.slot] += len(chunk.tokens)
            self.table.room[chunk.slot] -= len(chunk.tokens)
            if chunk.last:
                events += self._begin_decoding(live, chunk, step, row, readings)
        return events

    def _begin_decoding(
        self,
        live: Live,
        chunk: PrefillChunk,
        step: PackedStep,
        row: int,
        readings: StepReadings,
    ) -> list[Event]:
        read = int(step.read_start[row])
        first = int(readings.token[read])
        seed = first if live.resume is None else live.resume
        slots = np.array([chunk.slot])
        self.table.decoding[chunk.slot] = True
        set_seed(self.table, slots, np.array([seed]))
        if chunk.first_draft:
            take_drafts(
                self.table,
                slots,
                step.read_start[row + 1 : row + 2],
                np.array([chunk.first_draft]),
                np.array([Source.FIRST]),
                readings,
            )
        if live.resume is not None:
            live.resume = None
            return []
        faulty = bool(np.isnan(readings.entropy[read]))
        return [self._emit(live, [first], [int(Origin.PREFILL)], read, readings, faulty)]

    # -- endings ----------------------------------------------------------------------------

    def _emit(
        self,
        live: Live,
        window: list[int],
        origins: list[int],
        read: int,
        readings: StepReadings,
        faulty: bool,
    ) -> Event:
        """Emit what stops and budget leave of a window; ends the request where they say so."""
        tokens, finish, error = emit.cut_at_stop(live, [] if faulty else window, self.eos_ids)
        if faulty:
            finish, error = Finish.ERROR, "the model's logits are not finite"
        count = len(tokens)
        event = Event(live.request.key, tokens, origins[:count])
        live.tokens += tokens
        live.origins += event.origins
        if live.request.logprobs is not None and readings.logprob is not None:
            event.logprobs = readings.logprob[read : read + count].tolist()
            event.top_logprobs = [readings.top.get(read + j, []) for j in range(count)]
            live.logprobs += event.logprobs
            live.top_logprobs += event.top_logprobs
        self.table.emitted[live.slot] += count
        self.table.remaining[live.slot] -= count
        if finish is not None:
            event.finished = self._end(live, finish, error)
        return event

    def _end(self, live: Live, finish: Finish, error: str | None = None) -> Finished:
        self.needs.sampling.pop(live.slot, None)
        self.needs.logprobs.pop(live.slot, None)
        self.scheduler.close(live)
        del self._by_key[live.request.key]
        return emit.finished(live, finish, error)

    def _note_needs(self, live: Live) -> None:
        request = live.request
        self.needs.sampling.pop(live.slot, None)
        self.needs.logprobs.pop(live.slot, None)
        if not request.sampling.greedy or request.sampling.logit_bias:
            self.needs.sampling[live.slot] = request.sampling
        if request.logprobs is not None:
            self.needs.logprobs[live.slot] = request.logprobs


def _chunk_rows(step: PackedStep) -> list[tuple[int, PrefillChunk]]:
    """(row index, chunk) of a step's prompt chunks."""
    out, row = [], 0
    for chunk in step.chunks:
        out.append((row, chunk))
        row += 1 + (chunk.first_draft > 0)
    return out


def join_plans(plans: list[Plan]) -> Plan:
    """One plan out of several planners' plans; branch grids are padded to the widest."""
    widest = max(p.branch_kind.shape[1] for p in plans)

    def grid(name: str, fill: int) -> IntArray:
        parts = []
        for p in plans:
            part = getattr(p, name)
            pad = ((0, 0), (0, widest - part.shape[1]))
            parts.append(np.pad(part, pad, constant_values=fill))
        return np.concatenate(parts)

    return Plan(
        who=np.concatenate([p.who for p in plans]),
        act=np.concatenate([p.act for p in plans]),
        block=np.concatenate([p.block for p in plans]),
        branch_kind=grid("branch_kind", -1),
        branch_parent=grid("branch_parent", 0),
        branch_alt=grid("branch_alt", -1),
        branch_block=grid("branch_block", 0),
    )
