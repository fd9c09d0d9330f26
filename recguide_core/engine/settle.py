"""The end of a round: accept, pick the reusable branch, take over new drafts, move the state.

`judge` turns token-level readings into an `Outcome`; the simulator makes its outcomes from an
acceptance model instead. `advance` then moves the request table, for both alike. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.engine.readings import StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.policy.signals import round_entropy
from recguide_core.records import (
    MAX_BLOCK,
    Act,
    BranchKind,
    FloatArray,
    IntArray,
    Outcome,
    Plan,
    RequestTable,
    Source,
)

_POSITION = int(BranchKind.POSITION)
_PLACES = np.arange(MAX_BLOCK)
SOURCE_OF = np.array([Source.CORRECTION, Source.CONTINUATION, Source.POSITION, Source.FIRST])


@dataclass(slots=True)
class Verified:
    """Token-level result of the verifying requests of a step.

    Attributes:
        entry: index of each into the plan, int64 [m].
        tokens: verifier tokens t_0..; the first matched + 1 are emitted, int64 [m, W].
        entropy: per decision, float32 [m, W].
        read_from: index of each request's first readout, int64 [m].
    """

    entry: IntArray
    tokens: IntArray
    entropy: FloatArray
    read_from: IntArray


def _grid(values: np.ndarray, first: IntArray, width: int) -> np.ndarray:
    """values[first + 0 .. first + width - 1] of each row; indices past the end are clipped."""
    if width == 1:
        return values.take(first)[:, None]
    return np.asarray(values.take(first[:, None] + _PLACES[:width], mode="clip"))


def judge(
    plan: Plan,
    step: PackedStep,
    readings: StepReadings,
    table: RequestTable,
    entropy_positions: int,
) -> tuple[Outcome, Verified]:
    """Accept the longest prefix of each draft that the verifier confirms (lossless rule).

    matched = length of the run t_(j-1) == d_j; A = matched + 1. A branch is reusable iff it
    hypothesised exactly that length and its slot 0 is the verifier's token (Sec. 5.1).

    Args:
        entropy_positions: most decisions that e_t averages over (Eq. 2).
    """
    entry = (plan.act == Act.VERIFY).nonzero()[0]
    who, width = plan.who.take(entry), plan.block.take(entry)
    most = max(width.tolist(), default=1)
    first = step.read_start.take(step.main.take(entry))
    tokens = _grid(readings.token, first, most)
    entropy = _grid(readings.entropy, first, most)
    if most > 1:
        ends = np.ones((len(entry), most), bool)
        np.not_equal(tokens[:, :-1], table.draft[who, 1:most], out=ends[:, :-1])
        ends[:, :-1] |= _PLACES[1:most] >= width[:, None]
        matched = ends.argmax(1)
        mean = round_entropy(entropy, width, matched, None, entropy_positions)
    else:
        # Plain AR steps: the one decision is the round.
        matched, mean = np.zeros(len(entry), np.int64), entropy[:, 0]
    hit, hit_block = _pick_branch(plan, step, readings, entry, tokens, matched)
    outcome = Outcome(who, width, matched, mean, hit, hit_block)
    return outcome, Verified(entry, tokens, entropy, first)


def _pick_branch(
    plan: Plan,
    step: PackedStep,
    readings: StepReadings,
    entry: IntArray,
    tokens: IntArray,
    matched: IntArray,
) -> tuple[IntArray, IntArray]:
    branches = plan.branch_kind.shape[1]
    # Used branches come first.
    if not branches or plan.branch_kind[:, 0].max(initial=-1) < 0:
        none = np.zeros((2, len(entry)), np.int64)
        none[0] = -1
        return none[0], none[1]
    kind = plan.branch_kind.take(entry, axis=0)
    row = step.main[entry][:, None] + 1 + np.arange(branches)
    row = np.minimum(row, len(step.rows.length) - 1)
    predicted = readings.token[np.minimum(step.read_start[row], len(readings.token) - 1)]
    alt = plan.branch_alt[entry]
    slot0 = np.where(alt >= 0, alt, predicted)
    verifier = tokens[np.arange(len(entry)), matched]
    right = (slot0 == verifier[:, None]) | (kind == _POSITION)
    fits = (kind >= 0) & (plan.branch_parent[entry] == matched[:, None] + 1) & right
    hit = np.where(fits.any(1), fits.argmax(1), -1)
    block = plan.branch_block[entry, np.maximum(hit, 0)]
    return hit, np.where(hit >= 0, block, 0)


def advance(table: RequestTable, outcome: Outcome) -> None:
    """Move the history of verified requests: P, e_t, z_t. Tokens and drafts come separately."""
    who, moved = outcome.who, outcome.matched + 1
    table.committed[who] += moved
    table.room[who] -= moved
    table.e2[who] = table.e1[who]
    table.e1[who] = outcome.entropy
    table.prev_block[who] = outcome.width
    table.prev_full[who] = outcome.full
    table.rounds[who] += 1
    table.has_draft[who] = False


def set_seed(table: RequestTable, slots: IntArray, tokens: IntArray) -> None:
    """The newest token of each request, slot 0 of whatever it drafts or verifies next."""
    table.seed[slots] = tokens
    table.draft[slots, 0] = tokens


def take_drafts(
    table: RequestTable,
    slots: IntArray,
    read_from: IntArray,
    block: IntArray,
    source: IntArray,
    readings: StepReadings,
) -> None:
    """Make the drafts read out at `read_from` (slot 0 of each block) the requests' next drafts."""
    if not len(slots):
        return
    most = int(block.max())
    places = _PLACES[1:most]
    at = np.minimum(read_from[:, None] + places, len(readings.token) - 1)
    unused = None if (block == most).all() else places >= block[:, None]
    columns: tuple[tuple[np.ndarray, np.ndarray, float], ...] = (
        (table.draft, readings.token, 0),
        (table.alt, readings.alt, -1),
        (table.margin, readings.margin, 1),
        (table.confidence, readings.confidence, 1),
    )
    for column, values, blank in columns:
        drafted = values.take(at)
        if unused is not None:
            drafted[unused] = blank
        column[slots, 1:most] = drafted
        column[slots, most:] = blank
    table.has_draft[slots] = True
    table.draft_block[slots] = block
    table.draft_source[slots] = source


def take_over(
    table: RequestTable,
    plan: Plan,
    step: PackedStep,
    outcome: Outcome,
    verified: Verified,
    readings: StepReadings,
) -> None:
    """Drafts of this step: fresh ones, and the branch that each verified request may reuse."""
    fresh = ((plan.act == Act.DRAFT) | (plan.act == Act.DRAFTER)).nonzero()[0]
    hits = (outcome.hit >= 0).nonzero()[0]
    if not len(fresh) and not len(hits):
        return
    branch = outcome.hit[hits]
    entry = verified.entry[hits]
    rows = np.concatenate((step.main[fresh], step.main[entry] + 1 + branch))
    take_drafts(
        table,
        slots=np.concatenate((plan.who[fresh], outcome.who[hits])),
        read_from=step.read_start[rows],
        block=np.concatenate((plan.block[fresh], outcome.hit_block[hits])),
        source=np.concatenate(
            (
                np.where(plan.act[fresh] == Act.DRAFT, Source.DRAFT, Source.DRAFTER),
                SOURCE_OF[plan.branch_kind[entry, branch]],
            )
        ),
        readings=readings,
    )
