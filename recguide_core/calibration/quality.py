"""How good a value table is on prompts that it was not fitted to. Arrays in, numbers out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.policy.value import Reals, ValueTable
from recguide_core.policy.value_fit import ShadowRounds, fit
from recguide_core.records import BoolArray, IntArray

FOLDS = 5
WORTH = 5
"""A larger block was worth it where it accepted at least this many tokens more."""


def folds_of(requests: Sequence[str], folds: int, seed: int = 0) -> IntArray:
    """Fold of each request by the hash of its name, so that a prompt is never split, int64."""

    def fold(name: str) -> int:
        digest = hashlib.sha256(f"{seed}|{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % folds

    return np.array([fold(name) for name in requests], np.int64)


def out_of_fold(
    rounds: ShadowRounds, fold: IntArray, menu: Sequence[int], bins: int
) -> tuple[Reals, Reals]:
    """V and survival of every state from a table that has not seen its prompt.

    Args:
        fold: of each state, int64 [n].

    Returns:
        V float64 [n, M] and survival float64 [n, M, MAX_BLOCK].
    """
    values, survival = None, None
    for k in np.unique(fold).tolist():
        inside = fold == k
        rest = rounds.take(~inside)
        # With a single prompt there is nothing to hold out.
        table = fit(rest if len(rest) else rounds, menu, bins)
        seen = rounds.take(inside)
        at = (seen.signal(False), seen.prev_block, seen.prev_full)
        if values is None or survival is None:
            values = np.empty((len(rounds), len(table.menu)))
            survival = np.empty((*values.shape, table.survival(*at).shape[2]))
        values[inside], survival[inside] = table.values(*at), table.survival(*at)
    assert values is not None and survival is not None
    return values, survival


def auroc(score: npt.NDArray[np.floating], label: BoolArray) -> float | None:
    """Chance that a positive scores above a negative (ties half); None without both."""
    positives, negatives = int(label.sum()), int((~label).sum())
    if not positives or not negatives:
        return None
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[place]
    above = rank[label].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


@dataclass(frozen=True, slots=True)
class Worth:
    """How well V tells that `large` is worth it over `small` (at least `WORTH` more tokens)."""

    small: int
    large: int
    rate: float
    auroc: float | None


def worth(values: Reals, accepted: IntArray, menu: Sequence[int]) -> list[Worth]:
    """Every larger block over every smaller drafting one, out of fold."""
    out = []
    for i, small in enumerate(menu):
        for j in range(i + 1, len(menu)):
            if small > 1 and menu[j] - small >= WORTH:
                label = accepted[:, j] - accepted[:, i] >= WORTH
                score = values[:, j] - values[:, i]
                out.append(Worth(small, menu[j], float(label.mean()), auroc(score, label)))
    return out


@dataclass(frozen=True, slots=True)
class Reliability:
    """Predicted against observed survival: bins of predictions, k pooled.

    Attributes:
        predicted, observed, count: of each bin of ten, [10]; NaN where empty.
        error: mean absolute difference, weighted by count.
    """

    predicted: Reals
    observed: Reals
    count: IntArray
    error: float


def reliability(survival: Reals, accepted: IntArray, menu: Sequence[int]) -> Reliability:
    """P(A_B >= k) for k = 2..B of every drafting block, out of fold."""
    predicted, observed = [], []
    for j, block in enumerate(menu):
        k = np.arange(1, block)
        predicted.append(survival[:, j, 1:block].ravel())
        observed.append((accepted[:, j, None] > k).ravel())
    p, o = np.concatenate(predicted), np.concatenate(observed).astype(np.float64)
    bins = np.minimum((p * 10).astype(np.int64), 9)
    count = np.bincount(bins, minlength=10)
    some = np.maximum(count, 1)
    mean_p = np.where(count, np.bincount(bins, p, 10) / some, np.nan)
    mean_o = np.where(count, np.bincount(bins, o, 10) / some, np.nan)
    error = float(np.nansum(np.abs(mean_p - mean_o) * count) / count.sum())
    return Reliability(mean_p, mean_o, count, error)


def strata_rows(table: ValueTable) -> list[tuple[str, int, list[float], list[float]]]:
    """Per plain stratum: its name, rounds, V at its lowest and at its highest certainty."""
    out = []
    for s in table.strata:
        if s.lagged:
            continue
        if s.prev_block < 0:
            name = "any history"
        elif s.prev_block == 0:
            name = "no history"
        else:
            name = f"B = {s.prev_block}, {'full' if s.prev_full else 'partial'}"
        value = s.survival.sum(axis=2)
        bins = len(value) - 1
        low, high = (value[0], value[bins - 1]) if bins > 1 else (value[-1], value[-1])
        out.append((name, int(s.rounds[-1].max()), low.tolist(), high.tolist()))
    return out
