"""Record the rounds of a real run and replay them: same inputs, so the same decisions must come.

The recorder listens to an engine; the replay is the engine's loop with the recorded readings in
the place of the model, on a virtual clock. What a planner then decides is compared round by round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from recguide_core.engine.core import EngineCore
from recguide_core.engine.events import Event, RoundView
from recguide_core.engine.planners import Planner
from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.scheduler import Live
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.virtual import VirtualClock
from recguide_core.errors import DataError
from recguide_core.pages import PageTable
from recguide_core.records import FloatArray, IntArray, Request, RowKind


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a request: what was decided, and what the model said.

    Attributes:
        width, draft_block, source: verified width, B of the draft behind it and its `Source`.
        branches: (kind, parent, alt, block) of each branch, in order.
        draft, alt: int64 [draft_block]; margin, confidence: float32 [draft_block].
        verdict: verifier tokens, int64 [width]; entropy: nats, float32 [width].
        openings: slot-0 prediction of each branch; hit: the one that is reused, or -1.
    """

    width: int
    draft_block: int
    source: int
    branches: tuple[tuple[int, int, int, int], ...]
    draft: IntArray
    alt: IntArray
    margin: FloatArray
    confidence: FloatArray
    verdict: IntArray
    entropy: FloatArray
    openings: tuple[int, ...]
    hit: int

    @property
    def decision(self) -> tuple[object, ...]:
        """What the planner decided in this round."""
        return self.width, self.draft_block, self.source, self.branches


@dataclass(slots=True)
class Recording:
    """Rounds by request key, and the first token that each prompt pass gave."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def decisions(self) -> dict[str, list[tuple[object, ...]]]:
        """Decisions of every request, in order."""
        return {key: [r.decision for r in rounds] for key, rounds in self.rounds.items()}


class Recorder:
    """Observer of an engine; `listen` must also see its events."""

    def __init__(self) -> None:
        self.recording = Recording()

    def listen(self, events: Sequence[Event]) -> None:
        """Note the first token of requests that have just begun."""
        for event in events:
            if event.tokens:
                self.recording.first.setdefault(event.key, event.tokens[0])

    def on_rounds(self, view: RoundView) -> None:
        """Note the rounds of a settled step."""
        for i, slot in enumerate(view.outcome.who.tolist()):
            rounds = self.recording.rounds.setdefault(view.keys[slot], [])
            rounds.append(_round_of(view, i, slot))


def _round_of(view: RoundView, i: int, slot: int) -> Round:
    table, plan = view.table, view.plan
    entry, width = int(view.verified.entry[i]), int(view.outcome.width[i])
    drafted = bool(table.has_draft[slot])
    block = int(table.draft_block[slot]) if drafted else 0
    grid = zip(
        plan.branch_kind[entry].tolist(),
        plan.branch_parent[entry].tolist(),
        plan.branch_alt[entry].tolist(),
        plan.branch_block[entry].tolist(),
        strict=True,
    )
    branches = tuple(branch for branch in grid if branch[0] >= 0)
    first_row = int(view.step.main[entry]) + 1
    openings = [
        int(view.readings.token[view.step.read_start[first_row + k]]) for k in range(len(branches))
    ]
    return Round(
        width=width,
        draft_block=block,
        source=int(table.draft_source[slot]) if drafted else 0,
        branches=branches,
        draft=table.draft[slot, :block].copy(),
        alt=table.alt[slot, :block].copy(),
        margin=table.margin[slot, :block].copy(),
        confidence=table.confidence[slot, :block].copy(),
        verdict=view.verified.tokens[i, :width].copy(),
        entropy=view.verified.entropy[i, :width].copy(),
        openings=tuple(openings),
        hit=int(view.outcome.hit[i]),
    )


class ReplayExecutor:
    """`Executor` that answers with a recording.

    Raises:
        DataError: while running, when a row asks for something that was not recorded, which
            means that a decision came out differently.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.running: Mapping[int, Live] = {}
        self.done: dict[str, int] = {}

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        """The recorded readings of the step's rows."""
        del needs
        total = len(step.readout)
        out = StepReadings(
            token=np.zeros(total, np.int64),
            alt=np.full(total, -1, np.int64),
            confidence=np.ones(total, np.float32),
            margin=np.ones(total, np.float32),
            entropy=np.zeros(total, np.float32),
        )
        branch: dict[str, int] = {}
        for row, kind in enumerate(step.rows.kind.tolist()):
            at = slice(int(step.read_start[row]), int(step.read_start[row + 1]))
            key = self.running[int(step.rows.request[row])].request.key
            number = self.done.get(key, 0)
            if kind == RowKind.PREFILL:
                out.token[at] = self.recording.first.get(key, 0)
            elif kind == RowKind.VERIFY:
                found = self._round(key, number, at.stop - at.start, verify=True)
                out.token[at], out.entropy[at] = found.verdict, found.entropy
                self.done[key], branch[key] = number + 1, 0
            elif key in branch and self._unused(key, number, branch[key]):
                out.token[at.start] = self._opening(key, number, branch[key])
                branch[key] += 1
            else:
                branch[key] = branch.get(key, 0) + 1
                self._draft(out, at, key, number)
        return out

    def _unused(self, key: str, number: int, branch: int) -> bool:
        """This branch of the round just verified is not the next draft."""
        rounds = self.recording.rounds[key]
        return rounds[number - 1].hit != branch or number >= len(rounds)

    def _opening(self, key: str, number: int, branch: int) -> int:
        openings = self.recording.rounds[key][number - 1].openings
        if branch >= len(openings):
            raise DataError(
                f"Round {number - 1} of request {key} has a branch {branch}, recorded are "
                f"{len(openings)}.",
                "The replay decided otherwise than the recorded run.",
            )
        return openings[branch]

    def _draft(self, out: StepReadings, at: slice, key: str, number: int) -> None:
        found = self._round(key, number, at.stop - at.start, verify=False)
        out.token[at], out.alt[at] = found.draft, found.alt
        out.margin[at], out.confidence[at] = found.margin, found.confidence

    def _round(self, key: str, number: int, length: int, verify: bool) -> Round:
        rounds = self.recording.rounds.get(key, [])
        if number >= len(rounds):
            raise DataError(
                f"Request {key} has no round {number} in the recording.",
                "The replay decided otherwise than the recorded run.",
            )
        found = rounds[number]
        recorded = found.width if verify else found.draft_block
        if recorded != length:
            raise DataError(
                f"Round {number} of request {key} has {length} tokens, recorded are {recorded}.",
                "The replay decided otherwise than the recorded run.",
            )
        return found


def replay_core(
    recording: Recording,
    *,
    planners: Sequence[Planner],
    settings: EngineSettings,
    clock: VirtualClock,
    pages: PageTable,
    context: int,
    mask_id: int,
    eos_ids: frozenset[int],
) -> EngineCore:
    """The engine's loop over a recording; submit the recorded requests under their keys.

    Args:
        pages: as many as the recorded engine had; other arguments as there.
    """
    executor = ReplayExecutor(recording)
    core = EngineCore(
        executor=executor,
        pages=pages,
        planners=planners,
        settings=settings,
        context=context,
        mask_id=mask_id,
        eos_ids=eos_ids,
        clock=clock,
    )
    executor.running = core.scheduler.running
    return core


def serve(
    core: EngineCore, requests: Sequence[Request], concurrency: int, recorder: Recorder
) -> float:
    """Closed loop over a real or replayed engine; seconds on its clock.

    Args:
        recorder: added to the engine's observers, so that both runs are recorded alike.
    """
    core.observers.append(recorder)
    waiting, live, began = list(requests)[::-1], 0, core.clock.now()
    while waiting or live:
        while waiting and live < concurrency:
            core.submit(waiting.pop())
            live += 1
        events = core.step()
        recorder.listen(events)
        live -= sum(event.finished is not None for event in events)
    return core.clock.now() - began
