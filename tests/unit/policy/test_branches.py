"""Which branches accompany a verify row, against the rule written out for one row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.policy.branch_table import BranchTable, BranchTrials, fit_branches
from recguide_core.policy.branches import BranchRule, propose
from recguide_core.policy.cost import Milliseconds, Shapes
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.pricing import best_prefix, worthwhile
from recguide_core.records import MAX_BLOCK, BranchKind

CORRECTION, CONTINUATION = int(BranchKind.CORRECTION), int(BranchKind.CONTINUATION)
Branch = tuple[int, int, int, int]
FAR = 1000


def margins(risky: dict[int, float], block: int = 16) -> np.ndarray:
    row = np.ones(MAX_BLOCK, np.float32)
    row[1:block] = 0.9
    for slot, value in risky.items():
        row[slot] = value
    return row


def proposed(
    margin: np.ndarray,
    block: int = 16,
    remaining: int = FAR,
    room: int = FAR,
    rule: BranchRule | None = None,
    alt: np.ndarray | None = None,
    sizes: tuple[int, int] | None = None,
) -> list[Branch]:
    tokens = np.arange(100, 100 + MAX_BLOCK) if alt is None else alt
    miss, full = (None, None) if sizes is None else (np.array([s]) for s in sizes)
    proposal = propose(
        margin[None],
        tokens[None],
        np.array([block]),
        np.array([remaining]),
        np.array([room]),
        rule or BranchRule(),
        miss,
        full,
    )
    kind, parent, token, size = (g[0].tolist() for g in proposal.plan_grids())
    used = [k for k in kind if k >= 0]
    assert kind == used + [-1] * (3 - len(used)), "used branches come first"
    return list(zip(kind, parent, token, size, strict=True))[: len(used)]


def test_the_earliest_two_and_the_continuation() -> None:
    assert proposed(margins({5: 0.2, 9: 0.1})) == [
        (CORRECTION, 5, 105, 16),
        (CORRECTION, 9, 109, 16),
        (CONTINUATION, 16, -1, 16),
    ]


def test_a_safe_block_gets_the_continuation_only() -> None:
    assert proposed(margins({})) == [(CONTINUATION, 16, -1, 16)]


def test_three_risky_positions_leave_no_continuation() -> None:
    found = proposed(margins({2: 0.1, 5: 0.1, 9: 0.1}))
    assert found == [(CORRECTION, 2, 102, 16), (CORRECTION, 5, 105, 16)]


def test_margin_equal_to_delta_is_not_risky() -> None:
    assert proposed(margins({5: 0.5})) == [(CONTINUATION, 16, -1, 16)]
    assert proposed(margins({5: np.nextafter(np.float32(0.5), np.float32(0))}))[0][1] == 5


def test_the_seed_and_slots_behind_the_block_are_never_risky() -> None:
    assert proposed(margins({0: 0.0, 8: 0.0, 31: 0.0}, block=8), block=8) == [
        (CONTINUATION, 8, -1, 8)
    ]
    assert proposed(margins({31: 0.0}, block=32), block=32)[0] == (CORRECTION, 31, 131, 32)


def test_no_branch_without_a_next_round() -> None:
    row = margins({5: 0.2, 9: 0.1})
    assert proposed(row, remaining=16) == [(CORRECTION, 5, 105, 16), (CORRECTION, 9, 109, 16)]
    assert proposed(row, remaining=9) == [(CORRECTION, 5, 105, 16)]
    assert proposed(row, remaining=5) == []


def test_no_branch_behind_the_end_of_the_context() -> None:
    row = margins({5: 0.2, 9: 0.1})
    assert len(proposed(row, room=32)) == 3
    assert proposed(row, room=31) == [(CORRECTION, 5, 105, 16), (CORRECTION, 9, 109, 16)]
    assert proposed(row, room=24) == [(CORRECTION, 5, 105, 16)]


def test_raw_count_decides_about_the_continuation_even_if_corrections_are_dropped() -> None:
    alt = np.full(MAX_BLOCK, -1)
    assert proposed(margins({2: 0.1, 5: 0.1}), alt=alt) == [(CONTINUATION, 16, -1, 16)]
    assert proposed(margins({2: 0.1, 5: 0.1, 9: 0.1}), alt=alt) == []


def test_sizes_under_each_hypothesis() -> None:
    found = proposed(margins({5: 0.2}), sizes=(8, 32))
    assert found == [(CORRECTION, 5, 105, 8), (CONTINUATION, 16, -1, 32)]
    assert proposed(margins({5: 0.2}), sizes=(1, 32)) == [(CONTINUATION, 16, -1, 32)]


def test_ablation_switches() -> None:
    row = margins({5: 0.2, 9: 0.1})
    first = BranchRule(corrections=1, continuation=False)
    assert proposed(row, rule=first) == [(CORRECTION, 5, 105, 16)]
    none = BranchRule(corrections=0)
    assert proposed(row, rule=none) == [(CONTINUATION, 16, -1, 16)]
    assert proposed(row, rule=BranchRule(corrections=0, continuation=False)) == []


def test_plain_ar_prepares_nothing() -> None:
    assert proposed(np.zeros(MAX_BLOCK, np.float32), block=1) == []


def by_hand(
    margin: np.ndarray, alt: np.ndarray, block: int, remaining: int, room: int, delta: float
) -> list[Branch]:
    risky = [i for i in range(1, block) if margin[i] < delta]
    out = [
        (CORRECTION, p, int(alt[p]), block)
        for p in risky[:2]
        if alt[p] >= 0 and p < remaining and p + block <= room
    ]
    if len(risky) <= 2 and block > 1 and block < remaining and 2 * block <= room:
        out.append((CONTINUATION, block, -1, block))
    return out if block > 1 else []


@given(st.data())
def test_a_batch_follows_the_rule_row_by_row(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    # Few distinct margins, so that equality with delta and many risky slots both happen.
    margin = rng.choice([0.1, 0.5, 0.9], (n, MAX_BLOCK), p=[0.1, 0.2, 0.7]).astype(np.float32)
    alt = rng.integers(-1, 4, (n, MAX_BLOCK))
    block = rng.choice([1, 2, 4, 8, 16, 32], n)
    remaining, room = rng.integers(1, 70, n), rng.integers(1, 70, n)
    grids = propose(margin, alt, block, remaining, room, BranchRule()).plan_grids()
    for i in range(n):
        rows = [tuple(int(g[i, j]) for g in grids) for j in range(3) if grids[0][i, j] >= 0]
        want = by_hand(margin[i], alt[i], int(block[i]), int(remaining[i]), int(room[i]), 0.5)
        assert rows == want


class PerToken:
    """T = base + slope x tokens."""

    def __init__(self, base: float, slope: float) -> None:
        self.base, self.slope = base, slope

    def ms(self, shapes: Shapes) -> Milliseconds:
        return self.base + self.slope * shapes.query_tokens.astype(np.float64)


def constant_table(first: float, second: float, follow: float) -> BranchTable:
    blocks = np.array([8, 16, 32])
    rate = np.zeros((3, 2, 3, 8))
    rate[:, 0, 0], rate[:, 0, 1], rate[:, 1] = first, second, follow
    return BranchTable(0.5, blocks, rate, np.ones(rate.shape, np.int64))


def kept(requests: int, slope: float, table: BranchTable) -> list[Branch]:
    margin = np.repeat(margins({5: 0.2, 9: 0.1})[None], requests, axis=0)
    block = np.full(requests, 16)
    far = np.full(requests, FAR)
    alt = np.zeros((requests, MAX_BLOCK), np.int64)
    proposal = propose(margin, alt, block, far, far, BranchRule())
    prices = PackedPrices(PerToken(1.0, slope))
    chosen = worthwhile(proposal, block, table, prices, requests, 16 * requests, 0)
    grids = chosen.plan_grids()
    return [tuple(int(g[0, j]) for g in grids) for j in range(3) if grids[0][0, j] >= 0]


def test_free_tokens_keep_every_branch_that_ever_hits() -> None:
    assert len(kept(1, 0.0, constant_table(0.2, 0.05, 0.4))) == 3
    assert len(kept(1, 0.0, constant_table(0.2, 0.0, 0.4))) == 2


def test_price_decides_branch_by_branch() -> None:
    # Base step: 1 + 16 x 0.01 = 1.16 ms; a branch costs 0.16 ms, so P(hit) above 0.138 pays.
    found = kept(1, 0.01, constant_table(0.2, 0.05, 0.4))
    assert [b[0] for b in found] == [CORRECTION, CONTINUATION]
    assert found[0][1] == 5


def test_overlap_fades_with_load() -> None:
    table = constant_table(0.3, 0.1, 0.5)
    counts = [len(kept(c, 0.002, table)) for c in (1, 8, 64, 512)]
    assert counts[0] == 3
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)


def test_a_flat_stretch_of_the_cost_curve_is_filled() -> None:
    gain, cost = np.array([0.2, 0.2, 0.2, 0.2]), np.array([0.5, 0.5, 0.5, 2.0])
    assert best_prefix(gain, cost) == 3
    assert best_prefix(gain, cost + 0.2) == 0


def test_hit_rates_of_full_cells_are_the_observed_ones() -> None:
    n = 20000
    rng = np.random.default_rng(0)
    margin = rng.random(n).astype(np.float32)
    kind = np.zeros(n, np.int64)
    hit = rng.random(n) < np.where(margin < 0.2, 0.6, 0.1)
    trials = BranchTrials(np.full(n, 16), kind, kind, margin, hit)
    table = fit_branches(trials, [8, 16], 0.5)
    near, far = table.chance(
        np.array([16, 16]), np.array([0, 0]), np.array([0, 0]), np.array([0.15, 0.6], np.float32)
    )
    assert near == pytest.approx(0.6, abs=0.04)
    assert far == pytest.approx(0.1, abs=0.04)
    # No trial at B = 8 and none of the second rank: the coarser rate, and nothing.
    assert table.chance(*(np.array([v]) for v in (8, 0, 0, 0.15)))[0] == pytest.approx(0.6, abs=0.1)
    assert table.chance(*(np.array([v]) for v in (16, 1, 0, 0.15)))[0] == pytest.approx(0.0)


def test_branch_rows_rebuild_the_table() -> None:
    rng = np.random.default_rng(3)
    n = 500
    trials = BranchTrials(
        rng.choice([8, 16, 32], n),
        rng.integers(0, 2, n),
        rng.integers(0, 3, n),
        rng.random(n).astype(np.float32),
        rng.random(n) < 0.3,
    )
    tables = [fit_branches(trials, [1, 8, 16, 32], d) for d in (0.3, 0.5)]
    low, high = (t.to_columns() for t in tables)
    columns = {name: [*low[name], *high[name]] for name in low}
    again = BranchTable.from_columns(columns, 0.5)
    assert (again.rate == tables[1].rate).all()
    assert (again.count == tables[1].count).all()
    with pytest.raises(ValueError, match="delta"):
        BranchTable.from_columns(columns, 0.4)
