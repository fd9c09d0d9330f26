"""Every state of a round that carried branches, and the shares of Table 3."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recguide_core.engine.outcomes import BranchOutcome, OutcomeCounter, table_three
from recguide_core.records import BranchKind, Outcome, Plan, RequestTable

EOS = 2
WIDTH = 8


def view(
    *,
    risky: list[int],
    branched: list[int],
    matched: int,
    continuation: bool = False,
    hit: int = -1,
    eos: bool = False,
) -> Any:
    """One verified draft of width 8 with given risky and branched positions."""
    table = RequestTable.sized(1)
    table.has_draft[0] = True
    table.margin[0, risky] = 0.1
    plan = Plan.empty(np.array([0]), 3)
    for k, position in enumerate(branched):
        plan.branch_kind[0, k], plan.branch_parent[0, k] = BranchKind.CORRECTION, position
    if continuation:
        k = len(branched)
        plan.branch_kind[0, k], plan.branch_parent[0, k] = BranchKind.CONTINUATION, WIDTH
    tokens = np.full((1, WIDTH), 9)
    if eos:
        tokens[0, matched] = EOS
    outcome = Outcome(
        who=np.array([0]),
        width=np.array([WIDTH]),
        matched=np.array([matched]),
        entropy=np.zeros(1, np.float32),
        hit=np.array([hit]),
        hit_block=np.array([WIDTH if hit >= 0 else 0]),
    )
    verified = SimpleNamespace(entry=np.array([0]), tokens=tokens)
    return SimpleNamespace(
        table=table, plan=plan, outcome=outcome, verified=verified, keys={0: "a"}
    )


CASES = [
    (BranchOutcome.CORRECTION_REUSED, {"risky": [3], "branched": [3], "matched": 2, "hit": 0}),
    (BranchOutcome.CORRECTION_WRONG, {"risky": [3], "branched": [3], "matched": 2}),
    (BranchOutcome.NO_RISK, {"risky": [], "branched": [], "matched": 2}),
    (BranchOutcome.BEFORE, {"risky": [3], "branched": [3], "matched": 1}),
    (BranchOutcome.BETWEEN, {"risky": [2, 6], "branched": [2, 6], "matched": 3}),
    (BranchOutcome.BEHIND, {"risky": [2, 4], "branched": [2, 4], "matched": 5}),
    (BranchOutcome.BEHIND, {"risky": [2], "branched": [2], "matched": 5}),
    (BranchOutcome.BEHIND, {"risky": [1, 2, 5], "branched": [1, 2], "matched": 4}),
    (BranchOutcome.DROPPED, {"risky": [3], "branched": [], "matched": 2}),
    (BranchOutcome.FULL_WITHOUT, {"risky": [1, 2, 3], "branched": [1, 2], "matched": 7}),
    (
        BranchOutcome.CONTINUATION_REUSED,
        {"risky": [], "branched": [], "matched": 7, "continuation": True, "hit": 0},
    ),
    (
        BranchOutcome.CONTINUATION_WRONG,
        {"risky": [4], "branched": [4], "matched": 7, "continuation": True},
    ),
]


@pytest.mark.parametrize(("expected", "case"), CASES)
def test_each_state(expected: BranchOutcome, case: dict[str, Any]) -> None:
    counter = OutcomeCounter(0.5, frozenset({EOS}))
    counter.on_rounds(view(**case))
    assert counter.counts == {"all": Counter({expected: 1})}


def test_rounds_that_end_a_request_or_verify_no_draft_are_left_out() -> None:
    counter = OutcomeCounter(0.5, frozenset({EOS}))
    counter.on_rounds(view(risky=[3], branched=[3], matched=2, eos=True))
    plain = view(risky=[], branched=[], matched=2)
    plain.table.has_draft[0] = False
    counter.on_rounds(plain)
    assert counter.counts == {}


def test_shares_add_up_and_groups_are_kept_apart() -> None:
    counter = OutcomeCounter(0.5, frozenset({EOS}), {"a": "math"})
    for _, case in CASES:
        counter.on_rounds(view(**case))
    counts = counter.counts["math"]
    assert sum(counts.values()) == len(CASES)
    table = table_three(counts)
    total = table["correction_coverage"] + table["continuation_coverage"] + table["no_hit"]
    assert total == pytest.approx(100)
    assert table["correction_reuse"] == pytest.approx(100 / len(CASES))
    assert table["correction_coverage"] == pytest.approx(200 / len(CASES))
    assert np.isnan(table_three(Counter())["no_hit"])
