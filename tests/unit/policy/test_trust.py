"""How far V tells rounds apart, against regressions whose slope is known."""

import numpy as np
import pytest

from recguide_core.policy.trust import Trust


def told(slope: float, noise: float, rounds: int, blocks: int = 3, seed: int = 0) -> Trust:
    """Blocks of different means, whose rounds bring `slope` tokens for each that is promised."""
    rng = np.random.default_rng(seed)
    trust = Trust(blocks)
    for _ in range(rounds):
        index = rng.integers(0, blocks, 8)
        promised = rng.uniform(-2, 2, 8) + 4.0 * (index + 1)
        mean = 5.0 * (index + 1)
        accepted = mean + slope * (promised - 4.0 * (index + 1)) + noise * rng.normal(size=8)
        trust.add(index, promised, accepted, np.ones(blocks))
    return trust


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_the_slope_within_blocks_is_found_whatever_their_means(slope):
    # The prior of 30 rounds has some 8 % of the weight of the last 333.
    assert told(slope, 0.1, 200).slope == pytest.approx(slope + 0.09 * (1 - slope), abs=0.03)


def test_noise_and_promises_that_are_turned_around_leave_nothing():
    assert told(-1.0, 0.1, 200).slope == 0.0
    assert told(0.0, 3.0, 200).slope < 0.3
    assert told(3.0, 0.1, 200).slope == 1.0


def test_few_rounds_leave_the_tables_as_they_are():
    trust = Trust(2)
    assert trust.slope == 1.0
    trust.add(np.array([0, 0]), np.array([2.0, 4.0]), np.array([3, 3]), np.ones(2))
    assert trust.slope == pytest.approx(30 / 32, abs=0.001)


def test_promises_that_never_differ_say_nothing():
    trust = Trust(2)
    for accepted in (1, 5, 3):
        trust.add(np.array([1]), np.array([4.0]), np.array([accepted]), np.ones(2))
    assert trust.slope == 1.0


def test_what_was_long_ago_is_forgotten():
    trust = told(1.0, 0.1, 200)
    rng = np.random.default_rng(1)
    for _ in range(400):
        promised = rng.uniform(2, 6, 8)
        trust.add(np.zeros(8, np.int64), promised, np.full(8, 4), np.ones(3))
    assert trust.slope < 0.15
