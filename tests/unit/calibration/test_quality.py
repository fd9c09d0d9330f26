"""Held-out quality: folds, AUROC and reliability by hand."""

import numpy as np
import pytest

from recguide_core.calibration.quality import auroc, folds_of, out_of_fold, reliability, worth
from recguide_core.policy.value_fit import ShadowRounds


def test_auroc_by_hand() -> None:
    score = np.array([0.1, 0.4, 0.35, 0.8])
    label = np.array([False, False, True, True])
    assert auroc(score, label) == pytest.approx(0.75)
    assert auroc(np.zeros(4), label) == pytest.approx(0.5)
    assert auroc(score, np.ones(4, bool)) is None


def test_folds_follow_the_prompt_and_the_seed() -> None:
    names = [f"p{i}" for i in range(500)]
    fold = folds_of(names, 5)
    assert (fold == folds_of(names, 5)).all()
    assert (folds_of(names[::-1], 5)[::-1] == fold).all()
    assert (fold != folds_of(names, 5, seed=1)).any()
    assert np.bincount(fold, minlength=5).min() > 60


def shadow(n: int) -> ShadowRounds:
    rng = np.random.default_rng(0)
    e = rng.random((n, 3)).astype(np.float32)
    easy = (e[:, 0] < 0.5)[:, None]
    accepted = np.where(easy, [8, 16, 32], [3, 3, 3])
    return ShadowRounds(
        np.zeros(n, np.int64),
        np.arange(n) // 10,
        accepted,
        e[:, 0],
        e[:, 0],
        e[:, 0],
        np.full(n, 16),
        np.zeros(n, bool),
    )


def test_values_are_predicted_without_the_prompt_itself() -> None:
    rounds = shadow(1000)
    outlier = rounds.accepted.copy()
    outlier[:10] = 1  # request 0 is unlike all others
    odd = ShadowRounds(**{**{f: getattr(rounds, f) for f in rounds.__slots__}, "accepted": outlier})
    fold = folds_of([str(i) for i in range(100)], 5)[rounds.request]
    values, survival = out_of_fold(odd, fold, [8, 16, 32], 8)
    assert values.shape == (1000, 3)
    assert survival[0, :, 0] == pytest.approx([1, 1, 1])
    # What it did itself is not known to its prediction.
    alike = out_of_fold(rounds, fold, [8, 16, 32], 8)[0]
    assert values[:10] == pytest.approx(alike[:10])


def test_a_clear_signal_is_judged_perfect() -> None:
    rounds = shadow(1000)
    fold = folds_of([str(i) for i in range(100)], 5)[rounds.request]
    values, survival = out_of_fold(rounds, fold, [8, 16, 32], 8)
    found = {(w.small, w.large): w for w in worth(values, rounds.accepted, [8, 16, 32])}
    assert found[16, 32].auroc == pytest.approx(1.0, abs=0.02)
    assert found[16, 32].rate == pytest.approx((rounds.e1 < 0.5).mean())
    reliable = reliability(survival, rounds.accepted, [8, 16, 32])
    assert reliable.error < 0.05
    assert reliable.count.sum() == 1000 * (7 + 15 + 31)
