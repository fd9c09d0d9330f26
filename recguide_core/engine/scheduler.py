"""Who runs: admission by slots and pages, prompt chunks, preemption. No torch, no clock.

Requests are admitted in order of arrival. When pages run short the youngest running request is
preempted: it gives its pages back, waits at the head of the queue, and recomputes its prompt and
output later, which changes no token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from recguide_core.engine.rows import PrefillChunk
from recguide_core.engine.settings import EngineSettings
from recguide_core.pages import PageTable
from recguide_core.records import Act, IntArray, Plan, Request, RequestTable

RUN_ROUNDING = 256
"""Expected lengths are rounded up to this many tokens, so that runs of similar requests lie at
equal distances and one strided call can attend them all."""


@dataclass(slots=True, eq=False)
class Live:
    """A request between submission and its end.

    Attributes:
        context: tokens to commit before decoding: the prompt, and after a preemption also the
            output so far but its last token. int64 [n].
        prefilled: how many of them are committed.
        resume: the seed to go on with after a preemption, None for a new request.
        order: rank of admission; younger requests are preempted first.
    """

    request: Request
    context: IntArray
    slot: int = -1
    prefilled: int = 0
    resume: int | None = None
    order: int = 0
    fixed_block: int = 0
    tokens: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    rounds: int = 0
    forwards: int = 0
    reused: int = 0
    round_tokens: int = 0


class Scheduler:
    """Slots, pages and the waiting queue of one engine."""

    def __init__(
        self, settings: EngineSettings, table: RequestTable, pages: PageTable, context: int
    ) -> None:
        self.settings = settings
        self.table = table
        self.pages = pages
        self.context = context
        self.waiting: deque[Live] = deque()
        self.running: dict[int, Live] = {}
        self.preemptions = 0
        self._free_slots = list(range(settings.slots))[::-1]
        self._admitted = 0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def opening(self) -> bool:
        """A prompt is to be committed: somebody can be admitted, or was and is not through."""
        if self.waiting and self._free_slots:
            need = self.pages.pages_for(len(self.waiting[0].context) + 1)
            if need <= self.pages.free_pages:
                return True
        return any(live.prefilled < len(live.context) for live in self.running.values())

    def add(self, live: Live) -> None:
        self.waiting.append(live)

    def admit(self) -> list[Live]:
        """Move waiting requests into free slots while their prompts find pages."""
        admitted = []
        while self.waiting and self._free_slots:
            live = self.waiting[0]
            # One page of slack for the first round; more is reserved step by step.
            need = len(live.context) + 1
            room = live.request.max_tokens - len(live.tokens)
            if not self.pages.reserve(self._free_slots[-1], need, _rounded(need + room)):
                break
            self.waiting.popleft()
            live.slot = self._free_slots.pop()
            live.prefilled = 0
            self._admitted += 1
            live.order = self._admitted
            self.running[live.slot] = live
            self._open(live)
            admitted.append(live)
        return admitted

    def _open(self, live: Live) -> None:
        table, slot = self.table, live.slot
        table.reset(slot)
        table.live[slot] = True
        table.emitted[slot] = len(live.tokens)
        table.remaining[slot] = live.request.max_tokens - len(live.tokens)
        table.room[slot] = self.context
        table.fixed_block[slot] = live.fixed_block
        table.planner[slot] = live.request.planner

    def close(self, live: Live) -> None:
        """Free the slot and pages of a request, wherever it is."""
        if live.slot >= 0:
            self.pages.release(live.slot)
            self.table.reset(live.slot)
            del self.running[live.slot]
            self._free_slots.append(live.slot)
            live.slot = -1
        else:
            self.waiting.remove(live)

    def chunks(self, first_draft: dict[int, int]) -> list[PrefillChunk]:
        """Prompt pieces for this step, oldest request first.

        Args:
            first_draft: planner index -> B of the draft beside the last chunk (0 = none).
        """
        budget = self.settings.max_tokens_per_step
        out: list[PrefillChunk] = []
        open_ = [one for one in self.running.values() if one.prefilled < len(one.context)]
        for live in sorted(open_, key=lambda one: one.order):
            left = len(live.context) - live.prefilled
            size = min(left, self.settings.prefill_chunk or left)
            if out and size > budget:
                break
            last = size == left
            draft = first_draft.get(live.request.planner, 0) if last else 0
            draft = min(draft, live.fixed_block or draft)
            draft = min(draft, self.context - len(live.context))
            if draft and not self.pages.reserve(live.slot, len(live.context) + draft):
                draft = 0
            piece = live.context[live.prefilled : live.prefilled + size]
            # A draft of one token would draft nothing.
            out.append(
                PrefillChunk(live.slot, live.prefilled, piece, last, draft if draft > 1 else 0)
            )
            budget -= size
        return out

    def ready(self) -> IntArray:
        """Slots whose requests can draft or verify, in order of admission, int64 [n]."""
        slots = self.table.decoding.nonzero()[0]
        if len(slots) < 2:
            return slots
        orders = [self.running[s].order for s in slots.tolist()]
        return np.asarray(slots[np.argsort(orders)])

    def fit(self, plan: Plan) -> Plan:
        """Reserve pages for a plan, oldest request first; shrink or preempt where they are short.

        A request that cannot have its branches verifies without them, then with one token;
        the youngest request is preempted before an older one has to wait.
        """
        tokens = self.table.committed.take(plan.who) + plan.block
        if plan.branch_kind.shape[1]:
            tokens += np.where(plan.branch_kind >= 0, plan.branch_block, 0).sum(1)
        need, act = tokens.tolist(), plan.act.tolist()
        before = self.preemptions
        for i, slot in enumerate(plan.who.tolist()):
            if act[i] == Act.IDLE or slot not in self.running:
                continue
            if self.pages.reserve(slot, need[i]):
                continue
            committed = int(self.table.committed[slot])
            plan.branch_kind[i] = -1
            plan.branch_block[i] = 0
            while not self.pages.reserve(slot, committed + int(plan.block[i])):
                victim = max(self.running.values(), key=lambda one: one.order)
                if victim.slot == slot:
                    self._shrink(plan, i, slot)
                    break
                self.preempt(victim)
        if self.preemptions == before:
            return plan
        kept = np.array([s in self.running for s in plan.who.tolist()], dtype=bool)
        return plan if kept.all() else take_entries(plan, kept)

    def _shrink(self, plan: Plan, i: int, slot: int) -> None:
        """The youngest request gets what is left: a narrower round, one token, or nothing."""
        spare = self.pages.capacity(slot) + self.pages.free_pages * self.pages.page_size
        left = spare - int(self.table.committed[slot])
        if left < 1:
            self.preempt(self.running[slot])
            return
        if plan.act[i] == Act.VERIFY and self.table.has_draft[slot]:
            plan.block[i] = min(int(plan.block[i]), left)
        else:
            plan.act[i], plan.block[i] = Act.VERIFY, 1
        assert self.pages.reserve(slot, int(self.table.committed[slot] + plan.block[i]))

    def preempt(self, live: Live) -> None:
        """Take the pages of a running request away and queue it for recomputation."""
        self.preemptions += 1
        if live.tokens:
            live.resume = live.tokens[-1]
            output = np.asarray(live.tokens[:-1], dtype=np.int64)
            live.context = np.concatenate((live.request.prompt, output))
        self.close(live)
        self.waiting.appendleft(live)


def take_entries(plan: Plan, kept: np.ndarray) -> Plan:
    """The plan of some of its requests; kept: bool [n]."""
    return Plan(
        who=plan.who[kept],
        act=plan.act[kept],
        block=plan.block[kept],
        branch_kind=plan.branch_kind[kept],
        branch_parent=plan.branch_parent[kept],
        branch_alt=plan.branch_alt[kept],
        branch_block=plan.branch_block[kept],
    )


def _rounded(tokens: int) -> int:
    return -(-tokens // RUN_ROUNDING) * RUN_ROUNDING
