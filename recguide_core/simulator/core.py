"""The engine's loop over texts on a virtual clock, with stretches of plain AR taken in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from recguide_core.engine.core import EngineCore
from recguide_core.engine.events import Event
from recguide_core.engine.planners import ArPlanner, Planner
from recguide_core.engine.scheduler import Live
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.virtual import VirtualClock
from recguide_core.pages import PageTable
from recguide_core.records import IntArray, Origin, Request, StepShape
from recguide_core.simulator.executor import MASK_ID, PROMPT_ID, SyntheticExecutor, true_token
from recguide_core.simulator.texts import Texts

PAGE_SIZE = 64
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of a simulation.

    Attributes:
        texts: what each request says.
        max_tokens, prompt_tokens: length of each answer and prompt, int64 [n].
    """

    texts: Texts
    max_tokens: IntArray
    prompt_tokens: IntArray

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, count: int) -> Workload:
        """The first `count` requests, beginning again where there are fewer."""
        rows = np.arange(count) % len(self)
        texts = Texts(*(getattr(self.texts, f.name)[rows] for f in fields(Texts)))
        return Workload(texts, self.max_tokens[rows], self.prompt_tokens[rows])

    def request(self, index: int) -> Request:
        """Request `index`; its key is the index."""
        prompt = np.full(int(self.prompt_tokens[index]), PROMPT_ID, np.int64)
        return Request(str(index), prompt, int(self.max_tokens[index]), ignore_eos=True)


class SimulatedCore(EngineCore):
    """`EngineCore` whose model is a workload's texts.

    Args:
        planners: the methods, as for the engine.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        planners: Sequence[Planner],
        settings: EngineSettings,
        clock: VirtualClock,
    ) -> None:
        longest = int((workload.prompt_tokens + workload.max_tokens).max())
        context = longest + 64
        widest = max(planner.max_in_flight for planner in planners)
        pages = settings.slots * (-(-(context + widest) // PAGE_SIZE) + 1)
        self.model = SyntheticExecutor(workload.texts, workload.prompt_tokens, self._text_in)
        super().__init__(
            executor=self.model,
            pages=PageTable(pages, PAGE_SIZE),
            planners=planners,
            settings=settings,
            context=context,
            mask_id=MASK_ID,
            eos_ids=frozenset(),
            clock=clock,
        )
        self.virtual = clock
        self.horizon = _FOREVER
        self.fast_forward = all(isinstance(p, ArPlanner) for p in planners)

    def step(self) -> list[Event]:
        """One forward, or a stretch of identical ones up to the next end or arrival."""
        steps = self._identical_steps() if self.fast_forward else 0
        return self._skip(steps) if steps > 1 else super().step()

    def _text_in(self, slot: int) -> int:
        return int(self.scheduler.running[slot].request.key)

    def _identical_steps(self) -> int:
        """How many AR steps nothing but time and tokens changes in."""
        running = self.scheduler.running
        may_admit = bool(self.scheduler.waiting) and len(running) < self.settings.slots
        slots = self.scheduler.ready()
        if may_admit or len(slots) != len(running) or not len(slots) or not self.pages.free_pages:
            return 0
        if len(slots) > self.settings.max_requests:
            return 0
        steps = int(self.table.remaining[slots].min()) - 1
        if self.horizon < _FOREVER and steps > 1:
            longest = self.virtual.seconds(self._shape(slots, steps))
            steps = min(steps, int((self.horizon - self.clock.now()) / longest))
        return steps

    def _shape(self, slots: IntArray, ahead: int = 0) -> StepShape:
        kv = int(self.table.committed[slots].sum()) + ahead * len(slots)
        return StepShape("ar", len(slots), len(slots), kv, 1, 0)

    def _skip(self, steps: int) -> list[Event]:
        slots = self.scheduler.ready()
        for slot in slots.tolist():
            if not self.pages.reserve(slot, int(self.table.committed[slot]) + steps):
                return super().step()
        shape = self._shape(slots)
        self.virtual.charge_many(shape, steps, len(slots))
        self.counters.steps += steps
        self.counters.query_tokens += steps * len(slots)
        self.counters.by_kind["ar"] = self.counters.by_kind.get("ar", 0) + steps
        self.counters.rounds += steps * len(slots)
        events = [self._skip_one(self.scheduler.running[slot], steps) for slot in slots.tolist()]
        self._skip_history(slots, steps)
        return events

    def _skip_one(self, live: Live, steps: int) -> Event:
        slot = live.slot
        first = int(self.table.committed[slot]) + 1
        tokens = true_token(np.arange(first, first + steps)).tolist()
        self.pages.begin(slot, steps)
        self.pages.commit(slot, steps)
        live.tokens += tokens
        live.origins += [int(Origin.AR)] * steps
        live.rounds += steps
        live.forwards += steps
        live.round_tokens += steps
        return Event(live.request.key, tokens, [int(Origin.AR)] * steps, block=1, accepted=1)

    def _skip_history(self, slots: IntArray, steps: int) -> None:
        table, texts = self.table, self.model.texts
        table.committed[slots] += steps
        table.room[slots] -= steps
        table.emitted[slots] += steps
        table.remaining[slots] -= steps
        table.rounds[slots] += steps
        table.prev_block[slots], table.prev_full[slots] = 1, True
        table.seed[slots] = table.draft[slots, 0] = true_token(table.committed[slots])
        text = np.array([self._text_in(slot) for slot in slots.tolist()])
        newest = table.committed[slots] - self.model.prompt[text]
        table.e1[slots] = texts.entropy[text, newest]
        table.e2[slots] = texts.entropy[text, newest - 1]
