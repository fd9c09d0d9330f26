"""Verifier entropy as a noisy signal of how much of a run is left.

log e at a position = LEVEL - SLOPE log(R left) + sigma x noise. The level only sets the unit: the
policy bins by quantiles. Sigma is fitted so that s_t tells "32 is worth it over 16" from "it is
not" as well as the public notes say verification history does (AUROC 0.8423), on histories of
their exploration chain; the other AUROCs are predictions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from recguide_core.acceptance.published import AUROC, EXPLORATION, WORTH
from recguide_core.acceptance.runs import RunLaw

Floats = npt.NDArray[np.float64]

LEVEL = 0.0
"""log nats of a position with one token left: e = 1 nat."""
SLOPE = 1.0
FITTED = "32 over 16"
_MENU = (8, 16, 32)
_TEXTS, _TOKENS = 400, 512


def entropy_of(left: npt.NDArray[np.int64], noise: Floats, sigma: float) -> npt.NDArray[np.float32]:
    """e in nats at positions with `left` tokens of the run to come; noise is standard normal."""
    log_e = LEVEL - SLOPE * np.log(left) + sigma * noise
    return np.exp(log_e).astype(np.float32)


def fit_noise(runs: RunLaw, seed: int = 0) -> float:
    """Sigma at which s_t reaches the published AUROC of `FITTED`."""
    explored = Explored(runs, seed)
    low, high = 0.0, 8.0
    for _ in range(24):
        middle = 0.5 * (low + high)
        if explored.auroc(FITTED, middle) < AUROC[FITTED]:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


class Explored:
    """Rounds of the exploration chain on sampled texts: what is left, and the history's places.

    Args:
        runs: law of the texts; seed: of texts, noise and choices.
    """

    def __init__(self, runs: RunLaw, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        left = runs.sample(rng, _TEXTS, _TOKENS)
        noise = rng.standard_normal(left.shape)
        self.left, self.at, self.block = _walk(left, rng)
        known = self.at[:, 2:] < _TOKENS
        rows = np.arange(_TEXTS)[:, None]
        steps = range(2, self.at.shape[1])
        self._now = np.concatenate([self.left[:, t][known[:, t - 2]] for t in steps])
        place = [self.at[:, t][known[:, t - 2]] for t in steps]
        before = [self.at[:, t - 1][known[:, t - 2]] for t in steps]
        row = [rows[:, 0][known[:, t - 2]] for t in steps]
        r, p, b = (np.concatenate(x) for x in (row, place, before))
        self._recent = (left[r, p], noise[r, p])
        self._earlier = (left[r, b], noise[r, b])

    def base_rate(self, label: str) -> float:
        """Share of rounds in which the larger block is worth it."""
        return float(self._worth(label).mean())

    def auroc(self, label: str, sigma: float) -> float:
        """AUROC of s_t for `label` (a key of `WORTH`)."""
        s = -0.5 * (entropy_of(*self._recent, sigma) + entropy_of(*self._earlier, sigma))
        return auroc(s, self._worth(label))

    def _worth(self, label: str) -> npt.NDArray[np.bool_]:
        small, large, gain = WORTH[label]
        more = np.minimum(self._now, large) - np.minimum(self._now, small)
        return np.asarray(more >= gain)


def auroc(score: npt.ArrayLike, label: npt.NDArray[np.bool_]) -> float:
    """P(a positive scores above a negative), ties counting half."""
    values = np.asarray(score, np.float64)
    _, rank, count = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - 0.5 * (count - 1)
    positives = int(label.sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        return float("nan")
    total = middle[rank][label].sum() - positives * (positives + 1) / 2
    return float(total / (positives * negatives))


def round_correlation(runs: RunLaw, block: int, seed: int = 0) -> float:
    """Pearson correlation of A_t with A_{t+1} in rounds of fixed B."""
    rng = np.random.default_rng(seed)
    left = runs.sample(rng, _TEXTS, _TOKENS)
    accepted, _, _ = _walk(left, rng, lambda _: np.full(_TEXTS, block))
    a = np.minimum(accepted, block)
    pair = (accepted[:, 1:] > 0) & (accepted[:, :-1] > 0)
    return float(np.corrcoef(a[:, :-1][pair], a[:, 1:][pair])[0, 1])


def _walk(
    left: npt.NDArray[np.int64],
    rng: np.random.Generator,
    choose: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rounds over each text: R left (0 past the end), position and block, int64 [texts, rounds]."""
    chances = np.cumsum([EXPLORATION[b] for b in _MENU], axis=1)
    menu = np.array(_MENU)
    tokens = left.shape[1]
    rows = np.arange(len(left))
    at, block = np.zeros(len(left), np.int64), np.full(len(left), 16)
    found = []
    while (at < tokens).any():
        block = choose(block) if choose else block
        here = np.where(at < tokens, left[rows, np.minimum(at, tokens - 1)], 0)
        found.append((here, at, block))
        at = np.where(at < tokens, at + np.minimum(here, block), at)
        draw = rng.random((len(left), 1))
        block = menu[(chances[np.searchsorted(menu, block)] < draw).sum(1).clip(0, 2)]
    columns = [np.stack(x, axis=1) for x in zip(*found, strict=True)]
    return columns[0], columns[1], columns[2]
