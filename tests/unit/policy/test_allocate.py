"""Eq. 3, its ties, and the ways out of plain AR."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recguide_core.policy.allocate import PROBE_PERIOD, choose, choose_lasting, menu_cap, probe

MENU = np.array([1, 4, 8, 16, 32])


def test_hand_computed_choice() -> None:
    values = np.array([[1.0, 3.0, 5.0, 7.0, 8.0], [1.0, 1.2, 1.3, 1.3, 1.3]])
    prices = np.array([1.0, 2.0, 2.5, 4.0, 7.0])
    # rho = 1: 0, 1, 2.5, 3, 1 and 0, -.8, -1.2, ...
    assert choose(values, prices, 1.0).tolist() == [3, 0]
    assert choose(values, prices, 0.0).tolist() == [4, 2]


def test_ties_go_to_the_smaller_block() -> None:
    values = np.array([[2.0, 4.0, 4.0 + 1e-13]])
    assert choose(values, np.array([1.0, 3.0, 3.0]), 1.0).tolist() == [0]
    assert choose(values, np.array([1.0, 2.0, 2.0]), 1.0).tolist() == [1]


def test_tokens_beyond_the_budget_are_worth_nothing() -> None:
    values = np.array([[1.0, 3.5, 6.0, 10.0, 15.0]])
    prices = np.array([1.0, 2.0, 2.1, 2.2, 2.4])
    assert choose(values, prices, 1.0).tolist() == [4]
    assert choose(values, prices, 1.0, np.array([5])).tolist() == [2]
    assert choose(values, prices, 1.0, np.array([1])).tolist() == [0]


@given(
    hnp.arrays(np.float64, (7, 5), elements=st.floats(0, 32)),
    hnp.arrays(np.float64, 5, elements=st.floats(0.1, 50)),
    st.floats(0, 5),
)
def test_choice_is_the_best_and_rows_do_not_mix(
    values: np.ndarray, prices: np.ndarray, rho: float
) -> None:
    index = choose(values, prices, rho)
    score = values - rho * prices
    assert (score[np.arange(7), index] >= score.max(axis=1) - 1e-9).all()
    assert choose(values[::-1], prices, rho).tolist() == index[::-1].tolist()


@given(st.floats(0, 5), st.floats(0, 5))
def test_a_higher_price_of_time_never_lengthens_a_block(a: float, b: float) -> None:
    rng = np.random.default_rng(0)
    values = np.sort(rng.random((40, 5)) * 30, axis=1)
    prices = np.array([1.0, 2.0, 2.5, 4.0, 7.0])
    low, high = sorted((a, b))
    assert (choose(values, prices, high) <= choose(values, prices, low)).all()


def test_plain_ar_is_weighed_by_how_long_it_lasts() -> None:
    """AR loses 1 a round, the draft of 9 tokens 2: three AR rounds are expected for it."""
    prices, rho = np.array([2.0, 99.0, 11.0]), 1.0
    values = np.array([[1.0, 2.0, 9.0]])
    assert choose(values, prices, rho).tolist() == [0]
    assert choose_lasting(values, prices, rho).tolist() == [2]
    # Where AR gains, it gains as often.
    cheap = np.array([0.5, 99.0, 7.6])
    assert choose(values, cheap, rho).tolist() == [2]
    assert choose_lasting(values, cheap, rho).tolist() == [0]


def test_ar_lasts_no_longer_than_the_request() -> None:
    """The last token is plain AR's, however long the draft would have been."""
    prices, rho = np.array([10.0, 20.0, 20.0]), 0.3
    values = np.array([[1.0, 3.5, 10.0]])
    assert choose_lasting(values, prices, rho).tolist() == [2]
    assert choose_lasting(values, prices, rho, np.array([1])).tolist() == [0]


@given(st.integers(0, 999))
def test_lasting_ar_changes_no_choice_among_drafts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random((20, 5)) * 20 + 1, axis=1)
    prices = np.sort(rng.random(5) * 30)
    chosen = choose_lasting(values, prices, 0.5)
    drafts = chosen > 0
    assert (chosen[drafts] == choose(values[:, 1:], prices[1:], 0.5)[drafts] + 1).all()


def test_plain_ar_is_left_now_and_then() -> None:
    rounds, slot = np.arange(64), np.zeros(64, np.int64)
    stuck = probe(slot, MENU, rounds, slot)
    assert (stuck > 0).sum() == 64 // PROBE_PERIOD
    assert set(MENU[stuck].tolist()) == {1, 4}
    drafting = np.full(64, 3)
    assert (probe(drafting, MENU, rounds, slot) == 3).all()
    assert (probe(slot, MENU[1:], rounds, slot) == 0).all()


@pytest.mark.parametrize("period", [PROBE_PERIOD, 4 * PROBE_PERIOD])
def test_requests_that_came_together_probe_in_turns(period: int) -> None:
    """As many in every step, from the first one on."""
    slots, none = np.arange(2 * period), np.zeros(2 * period, np.int64)
    for rounds in range(period):
        probing = probe(none, MENU, none + rounds, slots, period)
        assert (probing > 0).sum() == 2


def test_blocks_are_cut_to_the_room_that_is_left() -> None:
    choice, room = np.array([4, 4, 4, 2, 0]), np.array([40, 31, 3, 100, 0])
    assert menu_cap(MENU, choice, room).tolist() == [32, 16, 1, 8, 1]
    assert menu_cap(MENU[2:], np.array([0]), np.array([5])).tolist() == [1]


def test_prices_may_differ_by_request() -> None:
    values = np.array([[1.0, 3.0], [1.0, 3.0]])
    prices = np.array([[1.0, 1.5], [1.0, 9.0]])
    assert choose(values, prices, 1.0).tolist() == [1, 0]
    assert choose(values, prices, 0.1) == pytest.approx([1, 1])
