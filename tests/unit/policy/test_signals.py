"""e_t and s_t: which decisions count, and what a missing round does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.policy.signals import certainty, decision_limit, round_entropy
from recguide_core.records import MAX_BLOCK

GRID = (np.arange(1, MAX_BLOCK + 1, dtype=np.float32)[None] ** 2).repeat(1, axis=0)


def one_round(width: int, matched: int, limit: int | None = None, k: int = MAX_BLOCK) -> float:
    caps = None if limit is None else np.array([limit])
    return float(round_entropy(GRID, np.array([width]), np.array([matched]), caps, k)[0])


def mean_of_first(count: int) -> float:
    return float(np.mean(GRID[0, :count]))


@pytest.mark.parametrize(
    ("width", "matched", "limit", "k", "count"),
    [
        (8, 0, None, 32, 1),  # only the rejected one
        (8, 3, None, 32, 4),  # three matched, one rejected
        (8, 6, None, 32, 7),
        (8, 7, None, 32, 7),  # full: the bonus does not count
        (32, 31, None, 7, 7),  # cut to k
        (16, 9, 9, 32, 9),  # EOS among the accepted: accepted minus one
        (1, 0, None, 32, 1),  # an AR step is its one token
        (2, 0, None, 32, 1),
        (2, 1, None, 32, 1),
    ],
)
def test_counted_decisions(width: int, matched: int, limit: int | None, k: int, count: int) -> None:
    assert one_round(width, matched, limit, k) == pytest.approx(mean_of_first(count))


def test_no_valid_decision_is_nan() -> None:
    assert np.isnan(one_round(1, 0, limit=0))
    assert np.isnan(one_round(8, 3, limit=0))


@given(
    st.lists(st.tuples(st.integers(1, MAX_BLOCK), st.data()), min_size=1, max_size=5),
)
def test_batch_equals_one_by_one(rows: list[tuple[int, st.DataObject]]) -> None:
    width = np.array([w for w, _ in rows])
    matched = np.array([d.draw(st.integers(0, w - 1)) for w, d in rows])
    rng = np.random.default_rng(len(rows))
    grid = rng.random((len(rows), MAX_BLOCK)).astype(np.float32)
    whole = round_entropy(grid, width, matched)
    for i in range(len(rows)):
        last = min(int(matched[i]), int(width[i]) - 2) if width[i] > 1 else 0
        assert whole[i] == pytest.approx(grid[i, : last + 1].mean(), rel=1e-5)


def test_entropy_behind_the_valid_decisions_is_never_read() -> None:
    grid = np.full((1, MAX_BLOCK), np.nan, np.float32)
    grid[0, :4] = 0.5
    assert round_entropy(grid, np.array([16]), np.array([3]))[0] == pytest.approx(0.5)


def test_certainty_averages_what_is_known() -> None:
    nan = np.nan
    e1 = np.array([0.2, 0.2, nan, nan], np.float32)
    e2 = np.array([0.6, nan, 0.6, nan], np.float32)
    s = certainty(e1, e2)
    assert s[:3] == pytest.approx([-0.4, -0.2, -0.6])
    assert np.isnan(s[3])
    assert s.dtype == np.float32


def test_decision_limit_follows_the_smallest_drafting_block() -> None:
    assert decision_limit("all", [8, 16, 32]) == MAX_BLOCK
    assert decision_limit(7, [8, 16, 32]) == 7
    assert decision_limit(7, [1, 4, 8]) == 3
