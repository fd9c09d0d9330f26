"""The vectorised plan of a batch equals the rule written out request by request."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_planning import PlainPlanner

from recguide_core.engine.guidance import FULL_MENU, Guidance
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.engine.turns import Turns
from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import BRANCHES, BranchRule
from recguide_core.policy.cost import InterpolatedCost
from recguide_core.policy.value import ANY, NO_HISTORY, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK, RequestTable
from recguide_core.tuning.guidance import load_tuned

COST = InterpolatedCost(
    {
        "kind": ["verify"] * 12,
        "requests": [1, 1, 1, 8, 8, 8, 32, 32, 32, 128, 128, 128],
        "query_tokens": [1, 8, 32, 8, 64, 256, 32, 256, 1024, 128, 1024, 4096],
        "kv_tokens": [500, 500, 700, 4000, 4000, 6000, 16000, 16000, 22000, 64000, 64000, 99000],
        "mean_ms": [4.0, 4.2, 4.6, 4.4, 5.5, 9.0, 5.0, 9.0, 26.0, 8.0, 27.0, 95.0],
    }
)


def guidance(rng: np.random.Generator, **changes) -> Guidance:
    """Made-up tables with several strata of different bins, and prices that bend."""
    strata = []
    for lagged in (False, True):
        for z in ((ANY, False), (NO_HISTORY, False), (4, False), (16, True), (32, False)):
            edges = np.unique(np.round(-rng.exponential(0.5, rng.integers(1, 6)), 2))[::1]
            rate = rng.uniform(0.3, 0.99, (len(edges) + 2, len(FULL_MENU), 1))
            curve = rate ** np.arange(MAX_BLOCK)
            curve[:, np.arange(MAX_BLOCK) >= np.array(FULL_MENU)[:, None]] = 0
            ones = np.ones(curve.shape[:2])
            strata.append(Stratum(*z, lagged, edges, curve, ones, ones.astype(np.int64)))
    blocks = np.array([b for b in FULL_MENU if b > 1])
    rate = rng.uniform(0, 0.6, (len(blocks), 2, BRANCHES, 8))
    known = {
        "value": ValueTable(FULL_MENU, strata),
        "cost": COST,
        "rho": {1: 0.5, 8: 1.2, 64: 6.0},
        "branches": BranchTable(0.5, blocks, rate, np.ones(rate.shape, np.int64)),
    }
    return Guidance(**(known | changes))


def requests(rng: np.random.Generator, n: int) -> RequestTable:
    """Every state that a request can be in, ends of budget and context included."""
    table = RequestTable.sized(n + 3)
    n = n + 3
    table.live[:] = table.decoding[:] = True
    table.committed[:] = rng.integers(1, 1500, n)
    near = rng.random((2, n)) < 0.3
    table.room[:] = np.where(near[0], rng.integers(1, 70, n), 4000)
    table.remaining[:] = np.where(near[1], rng.integers(1, 40, n), 400)
    table.has_draft[:] = rng.random(n) < rng.choice([0.0, 0.5, 1.0])
    table.draft_block[:] = rng.choice([2, 4, 8, 16, 32], n)
    table.draft_source[:] = rng.integers(1, 4, n)
    table.alt[:] = rng.integers(-1, 9, (n, MAX_BLOCK))
    table.margin[:] = rng.choice([0.04, 0.3, 0.5, 0.6, 0.8, 0.95], (n, MAX_BLOCK))
    table.margin[np.arange(MAX_BLOCK) >= table.draft_block[:, None]] = 1.0
    table.e1[:], table.e2[:] = np.round(rng.exponential(0.5, (2, n)), 2)
    table.prev_block[:] = rng.choice([0, 1, 4, 8, 16, 32], n)
    new = table.prev_block == 0
    table.e1[new] = table.e2[new] = np.nan
    table.e2[rng.random(n) < 0.1] = np.nan
    table.prev_full[:] = rng.random(n) < 0.4
    table.rounds[:] = rng.integers(0, 40, n)
    table.fixed_block[:] = np.where(rng.random(n) < rng.choice([0.0, 0.2]), 8, 0)
    return table


class Always(Turns):
    """Looks for branches in every step; when to is another matter (test_turns)."""

    def looks(self, requests: int, load: int) -> bool:
        return True


def compare(planner: RecGuidePlanner, table: RequestTable, who: np.ndarray, load: int) -> int:
    """Plan both ways; returns the branches of the plan."""
    planner._turns = Always()
    want = PlainPlanner(planner, table, who, load).plan()
    plan = planner.plan(table, who, load)
    for i in range(len(who)):
        kind = plan.branch_kind[i]
        used = int((kind >= 0).sum())
        assert (kind[:used] >= 0).all() and (kind[used:] == -1).all()
        assert (plan.branch_block[i, used:] == 0).all()
        grids = (plan.branch_kind, plan.branch_parent, plan.branch_alt, plan.branch_block)
        got = [tuple(int(g[i, j]) for g in grids) for j in range(used)]
        assert (int(plan.act[i]), int(plan.block[i]), got) == want[i]
    return int((plan.branch_kind >= 0).sum())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 7, 24]), st.sampled_from([1, 8, 64]))
def test_made_up_tables(seed: int, n: int, load: int) -> None:
    rng = np.random.default_rng(seed)
    changes: dict[str, object] = {}
    if rng.random() < 0.5:
        changes["overlap"] = {1: {8: (0.5, 1.5), 16: (0.3, 1.0)}, 64: {4: (0.1, 0.2)}}
    rule = BranchRule(float(rng.choice([0.3, 0.5])), int(rng.integers(0, 3)), rng.random() < 0.8)
    changes["rule"] = rule
    priced = bool(rng.random() < 0.8)
    planner = RecGuidePlanner(guidance(rng, **changes), priced=priced, learning=False)
    for _ in range(2):
        table = requests(rng, n)
        who = np.sort(rng.permutation(n + 3)[:n])
        compare(planner, table, who, load)


def test_every_kind_of_branch_occurs_where_it_pays() -> None:
    rng = np.random.default_rng(3)
    cheap = InterpolatedCost(
        {"kind": ["verify"] * 2, "requests": [1, 1], "query_tokens": [1, 999],
         "kv_tokens": [0, 0], "mean_ms": [5.0, 5.5]}
    )  # fmt: skip
    planner = RecGuidePlanner(guidance(rng, cost=cheap, rho={1: 0.0}), learning=False)
    seen = [compare(planner, requests(rng, 24), np.arange(24), 1) for _ in range(6)]
    assert sum(seen) > 20


@pytest.mark.parametrize("load", [1, 8, 128])
def test_shipped_tables(load: int) -> None:
    rng = np.random.default_rng(load)
    tuned = load_tuned("nld-tiny", "", "cpu", force=True).guidance
    planner = RecGuidePlanner(replace(tuned, overlap={}), learning=False)
    for _ in range(6):
        compare(planner, requests(rng, 64), np.arange(64), load)
