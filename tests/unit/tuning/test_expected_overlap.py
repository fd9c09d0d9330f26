"""What overlap brings on the policy's own states, and where it is kept; runs are stood in for."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from recguide_core.calibration.recording import Recorded
from recguide_core.engine.guidance import Guidance
from recguide_core.policy.value import ANY, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK, Act, BranchKind, Plan
from recguide_core.tuning.expected_overlap import (
    PRIOR,
    OverlapSeen,
    expect_overlap,
    keep_overlap,
)

TEXTS = Recorded([SimpleNamespace(name=str(i)) for i in range(6)], 8, frozenset())


def guidance(overlap) -> Guidance:
    survival, ones = np.ones((2, 3, MAX_BLOCK)), np.ones((2, 3))
    strata = [
        Stratum(ANY, False, lagged, np.empty(0), survival, ones, ones.astype(np.int64))
        for lagged in (False, True)
    ]
    table = ValueTable([1, 8, 16], strata)
    return Guidance(table, None, {1: 0.1, 16: 0.3}, menu=(1, 8, 16), overlap=overlap)


@dataclass
class Runs:
    """A runner whose runs have seen these counts, or score what `score` says of (load, policy)."""

    seen: dict = None
    score: object = None

    def __post_init__(self):
        self.orders = []

    def run(self, method, recorded, load, *, guidance, learning, observer=None):
        assert (method, learning) == ("recguide", False)
        self.orders.append([text.name for text in recorded.texts])
        if observer is not None:
            for block, (rounds, hits, tokens) in self.seen[load].items():
                observer.rounds[block] += rounds
                observer.hits[block] += hits
                observer.tokens[block] += tokens
            return None
        return SimpleNamespace(score=self.score(load, guidance))


def test_rounds_hits_and_branch_tokens_are_counted_by_the_verified_block():
    """Where the branch was sent from, not where its draft went."""
    plan = Plan.empty(np.arange(5), 2)
    plan.act[:] = [Act.VERIFY, Act.VERIFY, Act.VERIFY, Act.VERIFY, Act.DRAFT]
    plan.block[:] = [8, 8, 16, 1, 8]
    plan.branch_kind[0] = [BranchKind.CORRECTION, BranchKind.CONTINUATION]
    plan.branch_block[0] = [4, 16]
    plan.branch_block[2] = [32, 32]  # of no kind: left over, not sent
    outcome = SimpleNamespace(width=np.array([8, 8, 16, 1]), hit=np.array([1, -1, -1, -1]))
    seen = OverlapSeen()
    for _ in range(2):
        seen.on_rounds(SimpleNamespace(plan=plan, outcome=outcome))
    assert {b: int(n) for b, n in enumerate(seen.rounds) if n} == {1: 2, 8: 4, 16: 2}
    assert {b: int(n) for b, n in enumerate(seen.hits) if n} == {8: 2}
    assert {b: int(n) for b, n in enumerate(seen.tokens) if n} == {8: 40}


def test_own_rounds_count_against_the_traces_figures_scaled_by_all():
    start = guidance({1: {8: (0.4, 1.0), 16: (0.2, 0.5)}})
    runs = Runs(seen={1: {8: (150, 30, 600), 16: (0, 0, 0)}})
    found = expect_overlap(runs, start, TEXTS, [1]).overlap[1]
    # 30 of the 60 that were hoped for: the trace's figures are halved, and count for PRIOR rounds.
    h, rows = found[8]
    assert h == pytest.approx((PRIOR * 0.2 + 30) / (PRIOR + 150))
    assert rows == pytest.approx((PRIOR * 0.5 + 600 / 8) / (PRIOR + 150))
    assert found[16] == pytest.approx((0.1, 0.25))


def test_more_than_was_hoped_for_does_not_raise_blocks_that_were_not_drafted():
    start = guidance({1: {8: (0.1, 0.2), 16: (0.2, 0.5)}})
    runs = Runs(seen={1: {8: (100, 60, 800)}})
    found = expect_overlap(runs, start, TEXTS, [1]).overlap[1]
    assert found[8][0] > 0.4 and found[16] == pytest.approx((0.2, 0.5))


def test_loads_in_between_are_scaled_like_their_neighbours():
    at = {8: (0.4, 1.0), 16: (0.2, 0.5)}
    start = guidance({1: at, 4: at, 16: at})
    runs = Runs(seen={1: {8: (100, 40, 0)}, 16: {8: (100, 0, 0)}})
    found = expect_overlap(runs, start, TEXTS, [1, 16]).overlap
    assert found[4][16] == pytest.approx((0.1, 0.25))
    assert found[16][16] == (0.0, 0.0)


def test_overlap_is_kept_where_it_gains_over_several_orders():
    at = {8: (0.4, 1.0), 16: (0.2, 0.5)}
    start = guidance(dict.fromkeys((1, 2, 4, 8, 16), at))

    def score(load, policy):
        with_overlap = any(h for h, _ in policy.overlap[load].values())
        return {1: 1.1, 4: 1.003, 16: 0.9}[load] if with_overlap else 1.0

    runs = Runs(score=score)
    found, history = keep_overlap(runs, start, TEXTS, [1, 4, 16])
    assert [(h["concurrency"], h["kept"]) for h in history] == [(1, True), (4, False), (16, False)]
    assert history[0]["overlap_gain"] == pytest.approx(0.1)
    expects = {c: any(h for h, _ in e.values()) for c, e in found.overlap.items()}
    # 2 lies between a load that keeps it and one that does not; 8 between two that do not.
    assert expects == {1: True, 2: True, 4: False, 8: False, 16: False}
    assert {tuple(order) for order in runs.orders} == {
        tuple("012345"),
        tuple("234501"),
        tuple("450123"),
    }
