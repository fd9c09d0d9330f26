"""V_B(s, z): strata, bins, monotone survival, weights and the table's own rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.policy.value import ANY, NO_HISTORY, ValueTable
from recguide_core.policy.value_fit import (
    ShadowRounds,
    equal_weights,
    fit,
    isotonic,
    weighted_edges,
)

MENU = [1, 4, 8, 16, 32]


def shadow(n: int = 2000, seed: int = 0) -> ShadowRounds:
    """Rounds whose true run length shrinks with the last entropy."""
    rng = np.random.default_rng(seed)
    e = rng.random((n, 3)).astype(np.float32)
    run = rng.geometric(0.02 + 0.4 * e[:, 0].astype(np.float64))
    first = np.arange(n) % 20 == 0
    e[first] = np.nan
    e[np.arange(n) % 20 == 1, 1:] = np.nan
    return ShadowRounds(
        dataset=np.zeros(n, np.int64),
        request=np.arange(n) // 20,
        accepted=np.minimum(run[:, None], MENU),
        e1=e[:, 0],
        e2=e[:, 1],
        e3=e[:, 2],
        prev_block=np.where(first, 0, rng.choice([4, 8, 16, 32], n)),
        prev_full=rng.random(n) < 0.4,
    )


@pytest.fixture(scope="module")
def table() -> ValueTable:
    return fit(shadow(), MENU, bins=8)


def test_certain_history_is_worth_more(table: ValueTable) -> None:
    s = np.linspace(-1, 0, 50)
    value = table.values(s, np.full(50, 16), np.zeros(50, bool))
    assert (np.diff(value, axis=0) >= -1e-12).all()
    assert value[-1, -1] > 2 * value[0, -1]


def test_value_is_the_sum_of_survival_and_plain_ar_is_worth_one(table: ValueTable) -> None:
    s = np.array([-0.9, -0.2, np.nan])
    z = np.array([8, 16, 32]), np.array([True, False, True])
    survival = table.survival(s, *z)
    assert table.values(s, *z) == pytest.approx(survival.sum(axis=2))
    assert table.values(s, *z)[:, 0] == pytest.approx(1.0)
    assert (np.diff(survival, axis=2) <= 1e-12).all()
    assert (survival[:, :, 0] == 1).all()
    assert (survival[:, 1, 4:] == 0).all()


def test_missing_signal_reads_the_unbinned_survival() -> None:
    rounds = shadow()
    table = fit(rounds, MENU, bins=8)
    z = (rounds.prev_block == 8) & rounds.prev_full
    w = rounds.weights()[z]
    mean = w @ rounds.accepted[z] / w.sum()
    nan = table.values(np.array([np.nan]), np.array([8]), np.array([True]))
    assert nan[0] == pytest.approx(mean)


def test_value_on_an_edge_falls_into_the_lower_bin(table: ValueTable) -> None:
    stratum = next(s for s in table.strata if s.prev_block == 16 and not s.lagged)
    for i, edge in enumerate(stratum.edges):
        at, above = edge, np.nextafter(edge, np.inf)
        z = np.full(2, 16), np.full(2, stratum.prev_full)
        got = table.values(np.array([at, above]), *z)
        assert got[0] == pytest.approx(stratum.survival[i].sum(1))
        assert got[1] == pytest.approx(stratum.survival[i + 1].sum(1))


def test_no_history_is_its_own_stratum(table: ValueTable) -> None:
    rounds = shadow()
    cold = rounds.prev_block == 0
    w = rounds.weights()[cold]
    got = table.values(np.array([np.nan]), np.array([NO_HISTORY]), np.array([False]))
    assert got[0] == pytest.approx(w @ rounds.accepted[cold] / w.sum())


def test_thin_and_unknown_histories_read_the_pooled_stratum() -> None:
    rounds = shadow(400)
    table = fit(rounds, MENU, bins=24)  # 72 rounds a stratum are needed, about 48 are there
    assert {(s.prev_block, s.lagged) for s in table.strata} == {
        (ANY, False),
        (NO_HISTORY, False),
        (ANY, True),
        (NO_HISTORY, True),
    }
    s = np.array([-0.3, -0.3, -0.3])
    got = table.values(s, np.array([16, 2, ANY]), np.zeros(3, bool))
    assert (got == got[0]).all()


def test_lagged_strata_do_not_see_the_newest_entropy() -> None:
    rounds = shadow()
    blinded = ShadowRounds(
        **{f: getattr(rounds, f) for f in rounds.__slots__ if f != "e1"},
        e1=np.zeros_like(rounds.e1),
    )
    a, b = fit(rounds, MENU), fit(blinded, MENU)
    s, z = np.linspace(-1, 0, 9), (np.full(9, 8), np.zeros(9, bool))
    assert (a.values(s, *z, lagged=True) == b.values(s, *z, lagged=True)).all()
    assert not np.allclose(a.values(s, *z), b.values(s, *z))


def test_rows_rebuild_the_table(table: ValueTable) -> None:
    columns = table.to_columns()
    order = np.random.default_rng(1).permutation(len(columns["value"]))
    shuffled = {name: [column[i] for i in order] for name, column in columns.items()}
    again = ValueTable.from_columns(shuffled)
    s = np.append(np.linspace(-1.2, 0.1, 40), np.nan)
    for block in (ANY, 0, 4, 8, 16, 32):
        for full in (False, True):
            for lagged in (False, True):
                z = np.full(41, block), np.full(41, full)
                old, new = table.values(s, *z, lagged), again.values(s, *z, lagged)
                assert (old == new).all()
    lost = {name: column[:-1] for name, column in columns.items()}
    with pytest.raises(ValueError, match="rows"):
        ValueTable.from_columns(lost)


def test_restricted_menu_keeps_values(table: ValueTable) -> None:
    small = table.restricted([8, 16, 32])
    s, z = np.array([-0.5]), (np.array([8]), np.array([False]))
    assert (small.values(s, *z) == table.values(s, *z)[:, 2:]).all()
    with pytest.raises(ValueError, match="knows blocks"):
        table.restricted([8, 64])


def test_sets_requests_and_rounds_count_alike() -> None:
    dataset = np.array([0, 0, 0, 0, 1])
    request = np.array([0, 0, 0, 1, 7])
    w = equal_weights(dataset, request)
    assert w == pytest.approx([1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 2])


def test_nothing_to_fit_is_refused() -> None:
    rounds = shadow(40)
    with pytest.raises(ValueError, match="at least one round"):
        fit(rounds.take(np.zeros(40, bool)), MENU)


def test_weighted_edges_cut_equal_weight() -> None:
    s = np.arange(10, dtype=np.float32)
    w = np.ones(10)
    assert weighted_edges(s, w, 5) == pytest.approx([1, 3, 5, 7])
    assert weighted_edges(np.zeros(10, np.float32), w, 5).size == 0


def pava(y: list[float], w: list[float]) -> list[float]:
    """Pool adjacent violators, the textbook way."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(y, w, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (b, wb, nb), (a, wa, na) = blocks.pop(), blocks.pop()
            blocks.append(((a * wa + b * wb) / (wa + wb), wa + wb, na + nb))
    return [value for value, _, count in blocks for _ in range(count)]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.1, 5)),
        min_size=1,
        max_size=12,
    )
)
def test_isotonic_equals_pooling_adjacent_violators(cells: list[tuple[float, float]]) -> None:
    y, w = [a for a, _ in cells], [b for _, b in cells]
    ours = isotonic(np.array(y)[:, None], np.array(w))[:, 0]
    assert ours == pytest.approx(pava(y, w), abs=1e-9)
