"""rho by Dinkelbach against exhaustive search, and the identities of overlap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.policy.allocate import choose
from recguide_core.policy.cost import Milliseconds, Shapes
from recguide_core.policy.tune import (
    OverlapTrial,
    best_trial,
    bootstrap_gain,
    crossings,
    dinkelbach,
    forwards_per_round,
    pooled_rate,
    tau,
)


def exhaustive(values: np.ndarray, prices: np.ndarray, weight: np.ndarray) -> float:
    """Best pooled ratio over every rho at which a choice can change, and between them."""
    cuts = crossings(values, prices)
    points = np.concatenate([[0.0], cuts, (cuts[1:] + cuts[:-1]) / 2, cuts[-1:] * 2 + 1])
    return max(
        pooled_rate(values, prices, choose(values, prices, float(p)), weight) for p in points
    )


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_dinkelbach_finds_the_exhaustive_optimum(seed: int, per_round: bool) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    values = np.cumsum(rng.random((n, 4)) * 8, axis=1)
    shape = (n, 4) if per_round else (4,)
    prices = np.cumsum(0.2 + rng.random(shape) * 4, axis=-1)
    weight = rng.random(n) + 0.1
    rho = dinkelbach(values, prices, weight)
    assert rho == pytest.approx(exhaustive(values, prices, weight), rel=1e-9)
    choice = choose(values, prices, rho)
    assert pooled_rate(values, prices, choice, weight) == pytest.approx(rho, rel=1e-9)


def test_optimum_is_at_least_every_fixed_block() -> None:
    rng = np.random.default_rng(5)
    values = np.cumsum(rng.random((300, 5)) * 6, axis=1)
    prices = np.array([1.0, 1.9, 2.3, 3.9, 7.0])
    rho = dinkelbach(values, prices)
    fixed = [pooled_rate(values, prices, np.full(300, i)) for i in range(5)]
    assert rho >= max(fixed)


@pytest.mark.parametrize(
    ("accepted", "reuse", "paper", "expected"),
    [(9.93, 0.2204 + 0.3824, 14.02, 14.2), (10.10, 0.5744, 14.21, 14.2)],
)
def test_published_tau_follows_from_reuse(
    accepted: float, reuse: float, paper: float, expected: float
) -> None:
    assert tau(accepted, reuse) == pytest.approx(expected, abs=0.05)
    assert tau(accepted, reuse) == pytest.approx(paper, rel=0.015)


def test_forwards_and_the_ceiling_of_overlap() -> None:
    assert forwards_per_round(0.0) == 2.0
    assert tau(9.93, 0.0) == 9.93
    assert tau(1.0, 0.6) / tau(1.0, 0.0) == pytest.approx(1.43, abs=0.005)


class Published:
    """T at C = 1 of NLD-8B on a B200 (Sec. 7 of the plan): serial rounds of 10.2 and 11.2 ms."""

    def ms(self, shapes: Shapes) -> Milliseconds:
        return np.interp(shapes.query_tokens, [16, 32, 64], [5.1, 5.6, 6.3])


def test_low_load_search_combines_block_and_branches() -> None:
    model = Published()
    serial = {b: OverlapTrial(b, 0.5, (0, False), a, 0.0, 0.0) for b, a in ((16, 9.1), (32, 13.1))}
    overlap = OverlapTrial(16, 0.5, (2, True), 9.1, 0.6, 3.0)
    assert serial[16].rate(model, 1, 0) == pytest.approx(0.89, abs=0.01)
    assert serial[32].rate(model, 1, 0) == pytest.approx(1.17, abs=0.01)
    assert overlap.rate(model, 1, 0) == pytest.approx(1.09, abs=0.01)
    both = OverlapTrial(32, 0.5, (2, True), 13.1, 0.4, 1.0)
    assert best_trial([*serial.values(), overlap, both], model, 1, 0) is both


def test_bootstrap_interval_covers_the_gain_and_shrinks_to_it() -> None:
    rng = np.random.default_rng(2)
    theirs = np.stack([rng.integers(50, 200, 400), rng.random(400) * 20 + 40], 1).astype(float)
    ours = theirs * [1.1, 1.0]
    gain, low, high = bootstrap_gain(ours, theirs)
    assert gain == pytest.approx(0.1)
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)
    noisy = theirs * np.stack([rng.normal(1.1, 0.3, 400), np.ones(400)], 1)
    gain, low, high = bootstrap_gain(noisy, theirs)
    assert low < gain < high
    assert low > 0
    assert np.isnan(bootstrap_gain(np.empty((0, 2)), np.empty((0, 2)))[0])
