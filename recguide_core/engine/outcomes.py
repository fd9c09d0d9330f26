"""What became of prospective branches: coverage, reuse, and the reason of every miss (Table 3).

An observer of the engine; pure numpy. Each round that verified a draft falls into exactly one
state, so the counts add up to the rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

import numpy as np

from recguide_core.engine.events import RoundView
from recguide_core.policy.branches import risky_positions
from recguide_core.records import BranchKind, IntArray


class BranchOutcome(StrEnum):
    """How a round met its branches; q is the first mismatch, p1 < p2 the branched positions."""

    CORRECTION_REUSED = "correction reused"
    CORRECTION_WRONG = "correction at q, other token"
    CONTINUATION_REUSED = "continuation reused"
    CONTINUATION_WRONG = "continuation, other token"
    POSITION_REUSED = "position reused"
    FULL_WITHOUT = "full block without continuation"
    NO_RISK = "mismatch, no risky position"
    BEFORE = "mismatch before the first risky position"
    BETWEEN = "mismatch between risky positions"
    BEHIND = "mismatch behind the branched positions"
    DROPPED = "mismatch at a risky position whose branch was dropped"


REUSED = {
    BranchKind.CORRECTION: BranchOutcome.CORRECTION_REUSED,
    BranchKind.CONTINUATION: BranchOutcome.CONTINUATION_REUSED,
    BranchKind.POSITION: BranchOutcome.POSITION_REUSED,
}


class OutcomeCounter:
    """Counts outcomes by group (a data set, a category, ...).

    Args:
        delta: the rule's threshold, which says what counts as a risky position.
        eos_ids: rounds that reach an EOS have no next round and are left out.
        group_of: request key -> group; None puts everything into "all".
    """

    def __init__(
        self,
        delta: float,
        eos_ids: frozenset[int],
        group_of: Mapping[str, str] | None = None,
    ) -> None:
        self.delta = delta
        self.eos = np.array(sorted(eos_ids))
        self.group_of = group_of
        self.counts: dict[str, Counter[str]] = {}

    def on_rounds(self, view: RoundView) -> None:
        outcome = view.outcome
        drafted = view.table.has_draft[outcome.who] & (outcome.width > 1)
        column = np.arange(view.verified.tokens.shape[1])
        emitted = column <= outcome.matched[:, None]
        ends = (np.isin(view.verified.tokens, self.eos) & emitted).any(1)
        for i in np.flatnonzero(drafted & ~ends).tolist():
            slot = int(outcome.who[i])
            group = "all" if self.group_of is None else self.group_of[view.keys[slot]]
            state = self._classify(view, i, slot)
            self.counts.setdefault(group, Counter())[state] += 1

    def _classify(self, view: RoundView, i: int, slot: int) -> BranchOutcome:
        entry, outcome, plan = int(view.verified.entry[i]), view.outcome, view.plan
        kinds = plan.branch_kind[entry]
        hit = int(outcome.hit[i])
        if hit >= 0:
            return REUSED[BranchKind(int(kinds[hit]))]
        if bool(outcome.full[i]):
            some = bool((kinds == BranchKind.CONTINUATION).any())
            return BranchOutcome.CONTINUATION_WRONG if some else BranchOutcome.FULL_WITHOUT
        branched = plan.branch_parent[entry][kinds == BranchKind.CORRECTION]
        return self._miss(view, slot, int(outcome.width[i]), int(outcome.matched[i]) + 1, branched)

    def _miss(
        self, view: RoundView, slot: int, width: int, q: int, branched: IntArray
    ) -> BranchOutcome:
        if q in branched:
            return BranchOutcome.CORRECTION_WRONG
        bits, _ = risky_positions(view.table.margin[slot : slot + 1], np.array([width]), self.delta)
        risky = [p for p in range(1, width) if int(bits[0]) >> p & 1]
        if not risky:
            return BranchOutcome.NO_RISK
        if q < risky[0]:
            return BranchOutcome.BEFORE
        if q in risky[:2]:
            return BranchOutcome.DROPPED
        return BranchOutcome.BETWEEN if q < risky[min(1, len(risky) - 1)] else BranchOutcome.BEHIND


def table_three(counts: Counter[str]) -> dict[str, float]:
    """Coverage and reuse of Table 3 in percent of rounds; NaN without rounds.

    Covered: a branch stood where the round ended; reused: and its token was the verifier's.
    """
    total = sum(counts.values())

    def share(*states: BranchOutcome) -> float:
        found = sum(counts[s] for s in states)
        return 100.0 * found / total if total else float("nan")

    correction = share(BranchOutcome.CORRECTION_REUSED)
    continuation = share(BranchOutcome.CONTINUATION_REUSED)
    covered = correction + share(BranchOutcome.CORRECTION_WRONG)
    passed = continuation + share(BranchOutcome.CONTINUATION_WRONG)
    return {
        "rounds": float(total),
        "correction_coverage": covered,
        "correction_reuse": correction,
        "continuation_coverage": passed,
        "continuation_reuse": continuation,
        "no_hit": 100.0 - covered - passed if total else float("nan"),
    }
