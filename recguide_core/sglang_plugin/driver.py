"""One step of the production engine: the embedded engine's round over somebody else's scheduler.

SGLang decides which requests run and owns their KV slots; this driver keeps the request table,
asks the planner, packs rows, and settles, with the same functions as `engine.core`. It knows
neither tensors nor SGLang: an executor runs the rows. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from recguide_core.engine.batching import Batching, join_plans
from recguide_core.engine.build import build_rows
from recguide_core.engine.planners import Planner
from recguide_core.engine.readings import Executor, ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, PrefillChunk, pack, shape_of
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.settle import (
    advance,
    judge,
    set_seed,
    take_drafts,
    take_over,
)
from recguide_core.records import Act, IntArray, Plan, RequestTable, Source, StepShape
from recguide_core.sglang_plugin.step_records import (
    PromptPart,
    RoundRecord,
    StepResult,
    Tally,
    Turn,
)


class StepDriver:
    """Rounds for the requests of one SGLang scheduler.

    Args:
        planners: `PromptPart.planner` indexes them; the first is the default.
        slots: requests that can be alive at once; context: longest sequence in tokens.
        settings: batching and entropy positions; the limits in it are SGLang's business.
        place: told (slot, row) whenever a request's slot is bound to a row of the row table.
        load: nominal concurrency C that planners plan for, 0 = the requests of the step.
    """

    def __init__(
        self,
        executor: Executor,
        planners: Sequence[Planner],
        *,
        slots: int,
        context: int,
        mask_id: int,
        settings: EngineSettings,
        place: Callable[[int, int], None] | None = None,
        load: int = 0,
    ) -> None:
        self.executor = executor
        self.planners = list(planners)
        self.context = context
        self.load = load
        self.mask_id = mask_id
        self.table = RequestTable.sized(slots)
        self.batching = Batching(settings)
        self.entropy_positions = settings.entropy_positions
        self.needs = ReadoutNeeds()
        self.tally = Tally()
        self.observers: list[Callable[[RoundRecord], None]] = []
        self.first_drafts = [planner.first_draft for planner in planners]
        self._carried = np.zeros(slots, np.int64)
        """Forwards that carried each slot's request since its last round."""
        self._place = place or (lambda slot, row: None)
        self._slot: dict[str, int] = {}
        self._running: set[str] = set()
        self._free = list(range(slots))[::-1]

    # -- requests ---------------------------------------------------------------------------

    def _open(self, part: PromptPart) -> int:
        """Bind a request to a slot and forget its history (a retracted one starts anew)."""
        slot = self._slot.get(part.key)
        if slot is None:
            if not self._free:
                self._drop_stale()
            slot = self._slot[part.key] = self._free.pop()
        table = self.table
        table.reset(slot)
        table.live[slot] = True
        table.committed[slot] = part.first
        table.remaining[slot] = part.remaining
        table.room[slot] = self.context - part.first
        table.planner[slot], table.fixed_block[slot] = part.planner, part.block
        self._carried[slot] = 0
        self.batching.opened(slot)
        self.needs.sampling.pop(slot, None)
        if not part.sampling.greedy or part.sampling.logit_bias:
            self.needs.sampling[slot] = part.sampling
        self._place(slot, part.row)
        return slot

    def forget(self, key: str) -> None:
        """Drop a request's state; unknown keys are fine."""
        slot = self._slot.pop(key, None)
        if slot is not None:
            self.table.reset(slot)
            self.needs.sampling.pop(slot, None)
            self._free.append(slot)

    def keep_only(self, keys: Sequence[str]) -> None:
        """Drop every request that is not among `keys`."""
        self._running = set(keys)
        for key in self._slot.keys() - self._running:
            self.forget(key)

    def _drop_stale(self) -> None:
        """Forget the oldest request that the last decode step did not carry.

        Requests that end with their prompt are never decoded, so nothing else drops them.
        """
        self.forget(next(key for key in self._slot if key not in self._running))

    # -- prompts ----------------------------------------------------------------------------

    def prefill(self, parts: Sequence[PromptPart]) -> tuple[IntArray, list[str]]:
        """Commit prompt pieces in one forward, first drafts beside them where the method has any.

        Returns:
            the next token of each part (of a middle piece: whatever follows it), int64 [n]; keys
            of requests whose logits were not finite.
        """
        table = self.table
        chunks = []
        for part in parts:
            slot = self._open(part)
            end = part.first + len(part.tokens)
            draft = self.first_drafts[part.planner] if part.last else 0
            draft = min(draft, part.block or draft, self.context - end)
            chunks.append(
                PrefillChunk(slot, part.first, part.tokens, True, draft if draft > 1 else 0)
            )
        plan = Plan.empty(np.empty(0, np.int64))
        step, readings = self._forward(plan, chunks)
        self.tally.prefills += 1
        tokens = np.empty(len(parts), np.int64)
        faulty, row = [], 0
        for i, (part, chunk) in enumerate(zip(parts, chunks, strict=True)):
            read = int(step.read_start[row])
            slots = np.array([chunk.slot])
            tokens[i] = readings.token[read]
            if np.isnan(readings.entropy[read]):
                faulty.append(part.key)
            table.committed[slots] += len(part.tokens)
            table.room[slots] -= len(part.tokens)
            set_seed(table, slots, tokens[i : i + 1])
            if chunk.first_draft:
                block, source = np.array([chunk.first_draft]), np.array([Source.FIRST])
                first = step.read_start[row + 1 : row + 2]
                take_drafts(table, slots, first, block, source, readings)
            if part.last:
                table.decoding[slots] = True
                table.emitted[slots] += 1
                table.remaining[slots] -= 1
            row += 1 + (chunk.first_draft > 0)
        return tokens, faulty

    # -- rounds -----------------------------------------------------------------------------

    def decode(self, turns: Sequence[Turn]) -> StepResult:
        """One forward for every request that can run; see `StepResult`."""
        who = np.array([self._slot[turn.key] for turn in turns], dtype=np.int64)
        self._agree(turns, who)
        self.keep_only([turn.key for turn in turns])
        plan = self.batching.select(self._plan(who))
        step, readings = self._forward(plan, [])
        return self._settle(turns, who, plan, step, readings)

    def _plan(self, who: IntArray) -> Plan:
        load, asked = self.load or len(who), self.table.planner[who]
        used = np.unique(asked).tolist()
        if len(used) == 1:
            plan: Plan = self.planners[int(used[0])].plan(self.table, who, load)
            return plan
        return join_plans(
            [self.planners[index].plan(self.table, who[asked == index], load) for index in used]
        )

    def _agree(self, turns: Sequence[Turn], who: IntArray) -> None:
        """Both sides must count the same committed tokens; the rows may have moved."""
        committed = np.array([turn.committed for turn in turns], dtype=np.int64)
        assert np.array_equal(self.table.committed[who], committed), "committed lengths differ"
        self.table.remaining[who] = [turn.remaining for turn in turns]
        for turn, slot in zip(turns, who.tolist(), strict=True):
            self._place(slot, turn.row)

    def _forward(self, plan: Plan, chunks: list[PrefillChunk]) -> tuple[PackedStep, StepReadings]:
        rows, main = build_rows(plan, chunks, self.table, self.mask_id)
        step = pack(rows, self.table.committed, chunks, main)
        readings = self.executor.execute(step, self.needs)
        self._count(shape_of(step), plan)
        return step, readings

    def _count(self, shape: StepShape, plan: Plan) -> None:
        tally = self.tally
        tally.steps += 1
        tally.query_tokens += shape.query_tokens
        tally.branches += shape.branches
        busy = plan.act != Act.IDLE
        tally.request_forwards += int(busy.sum())
        self._carried[plan.who[busy]] += 1

    def _settle(
        self,
        turns: Sequence[Turn],
        who: IntArray,
        plan: Plan,
        step: PackedStep,
        readings: StepReadings,
    ) -> StepResult:
        table = self.table
        outcome, verified = judge(plan, step, readings, table, self.entropy_positions)
        result = StepResult.empty(len(turns))
        source = table.draft_source[outcome.who]
        source[~table.has_draft[outcome.who]] = Source.NONE
        self.tally.count_rounds(outcome, source)
        turn_of = np.zeros(len(table.live), np.int64)
        turn_of[who] = np.arange(len(who))
        at = turn_of[outcome.who]
        keys = [turns[i].key for i in at.tolist()]
        if self.observers and len(keys):
            for observe in self.observers:
                observe(RoundRecord(keys, outcome, source, plan, verified))
        advance(table, outcome)
        take_over(table, plan, step, outcome, verified, readings)
        if not len(keys):
            return result
        set_seed(table, outcome.who, verified.tokens[np.arange(len(keys)), outcome.matched])
        width = verified.tokens.shape[1]
        result.tokens[at, :width] = verified.tokens
        result.counts[at] = outcome.matched + 1
        carried = self._carried[outcome.who]
        result.rounds[at] = np.stack([outcome.width, outcome.matched + 1, source, carried], 1)
        self._carried[outcome.who] = 0
        table.emitted[outcome.who] += outcome.matched + 1
        emitted = np.arange(width) <= outcome.matched[:, None]
        bad = np.flatnonzero((np.isnan(verified.entropy) & emitted).any(1))
        result.faulty = [keys[i] for i in bad.tolist()]
        return result
