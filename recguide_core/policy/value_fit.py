"""Fit V_B(s, z) to shadow rounds: what every block would have accepted from the same state.

Knows arrays of rounds; not where they were recorded. Per stratum: weighted quantile bins of s, in
each bin P(A_B >= k), isotonic in s because certainty can only help, falling in k by definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from recguide_core.policy.signals import certainty
from recguide_core.policy.value import ANY, NO_HISTORY, Reals, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK, BoolArray, FloatArray, IntArray

BINS = 24
THIN = 48
"""A stratum with fewer rounds than this, or than three a bin, falls back to the pooled one."""


@dataclass(frozen=True, slots=True)
class ShadowRounds:
    """n states and what each block of a menu of M accepted from them.

    Attributes:
        dataset, request: ids that group the states for equal weights, int64 [n].
        accepted: A_B, int64 [n, M]; 0 where the block was not tried.
        e1, e2, e3: entropies of the last three rounds in nats, float32 [n]; NaN if none.
        prev_block, prev_full: z, int64 and bool [n]; prev_block 0 without history.
    """

    dataset: IntArray
    request: IntArray
    accepted: IntArray
    e1: FloatArray
    e2: FloatArray
    e3: FloatArray
    prev_block: IntArray
    prev_full: BoolArray

    def __len__(self) -> int:
        return len(self.request)

    def take(self, rows: npt.NDArray[np.bool_] | IntArray) -> ShadowRounds:
        """A subset of the states."""
        return ShadowRounds(*(getattr(self, f.name)[rows] for f in fields(self)))

    def signal(self, lagged: bool) -> FloatArray:
        """s of each state; the lagged one lacks the newest entropy."""
        return certainty(self.e2, self.e3) if lagged else certainty(self.e1, self.e2)

    def weights(self) -> Reals:
        """Sets count alike, requests of a set alike, rounds of a request alike; sums to 1."""
        return equal_weights(self.dataset, self.request)


def equal_weights(dataset: IntArray, request: IntArray) -> Reals:
    """Weight of each round so that sets, requests and rounds count alike, float64 [n]."""
    pairs, where, rounds = np.unique(
        np.stack([dataset, request], 1), axis=0, return_inverse=True, return_counts=True
    )
    where = where.ravel()
    sets, requests = np.unique(pairs[:, 0], return_counts=True)
    share = 1.0 / (len(sets) * requests[np.searchsorted(sets, dataset)])
    return np.asarray(share / rounds[where], dtype=np.float64)


def fit(rounds: ShadowRounds, menu: Sequence[int], bins: int = BINS) -> ValueTable:
    """The value table of `menu`, whose columns `rounds.accepted` has.

    Raises:
        ValueError: there is no round at all, or a block of the menu was never tried.
    """
    order = np.argsort(np.asarray(menu))
    accepted = rounds.accepted[:, order]
    if not len(rounds) or not (accepted > 0).any(axis=0).all():
        raise ValueError("every block of the menu needs at least one round")
    weight = rounds.weights()
    known = rounds.prev_block > 0
    strata = []
    for lagged in (False, True):
        s = rounds.signal(lagged)
        groups: list[tuple[int, bool, npt.NDArray[np.bool_]]] = [
            (ANY, False, known if known.any() else np.ones(len(rounds), bool))
        ]
        if (~known).any():
            groups.append((NO_HISTORY, False, ~known))
        for block in np.unique(rounds.prev_block[known]).tolist():
            same = rounds.prev_block == block
            groups += [(block, f, same & (rounds.prev_full == f)) for f in (False, True)]
        for block, full, rows in groups:
            thin = np.isfinite(s[rows]).sum() < max(THIN, 3 * bins)
            if thin and block > 0:
                continue
            edges = np.empty(0) if thin else weighted_edges(s[rows], weight[rows], bins)
            cells = _cells(edges, s[rows], accepted[rows], weight[rows])
            strata.append(Stratum(block, full, lagged, edges, *cells))
    return ValueTable(sorted(menu), strata)


def weighted_edges(s: npt.NDArray[np.floating], weight: Reals, bins: int) -> Reals:
    """Inner edges of `bins` bins of equal weight, ascending, without doubles."""
    finite = np.isfinite(s)
    order = np.argsort(s[finite], kind="stable")
    values = s[finite][order].astype(np.float64)
    share = np.cumsum(weight[finite][order])
    at = np.searchsorted(share, share[-1] * np.arange(1, bins) / bins)
    edges = np.unique(values[np.minimum(at, len(values) - 1)])
    # The largest value as an edge would leave nothing above it.
    return np.asarray(edges[edges < values[-1]])


def _cells(
    edges: Reals, s: npt.NDArray[np.floating], accepted: IntArray, weight: Reals
) -> tuple[Reals, Reals, IntArray]:
    """Survival, weight and rounds of each bin (the unbinned one last) and block."""
    shape = (len(edges) + 2, accepted.shape[1])
    survival = np.zeros((*shape, MAX_BLOCK))
    mass, rounds = np.zeros(shape), np.zeros(shape, np.int64)
    bin_of = np.searchsorted(edges, s.astype(np.float64), side="left")
    for j in range(accepted.shape[1]):
        tried = accepted[:, j] > 0
        reach = (accepted[tried, j, None] > np.arange(MAX_BLOCK)).astype(np.float64)
        w = weight[tried]
        mass[-1, j], rounds[-1, j] = w.sum(), tried.sum()
        pooled = w @ reach / max(mass[-1, j], np.finfo(float).tiny)
        survival[-1, j] = pooled
        seen = np.isfinite(s[tried])
        where = bin_of[tried][seen]
        inner = shape[0] - 1
        mass[:-1, j] = np.bincount(where, w[seen], inner)
        rounds[:-1, j] = np.bincount(where, minlength=inner)
        sums = np.zeros((inner, MAX_BLOCK))
        np.add.at(sums, where, w[seen, None] * reach[seen])
        # A bin without rounds of this block takes the pooled curve at next to no weight.
        heft = np.maximum(mass[:-1, j], mass[-1, j] * 1e-9)
        mean = np.where(mass[:-1, j, None] > 0, sums / heft[:, None], pooled)
        survival[:-1, j] = np.minimum.accumulate(isotonic(mean, heft), axis=1)
    return np.clip(survival, 0.0, 1.0), mass, rounds


def isotonic(y: Reals, weight: Reals) -> Reals:
    """Closest non-decreasing sequence along axis 0 (what PAVA computes), for many columns at once.

    By the max-min formula: iso_i = max over j <= i of min over l >= i of mean(y_j..y_l).

    Args:
        y: float64 [bins, columns]; weight: float64 [bins], > 0.
    """
    n = len(y)
    mass = np.concatenate([[0.0], np.cumsum(weight)])
    total = np.concatenate([np.zeros((1, y.shape[1])), np.cumsum(y * weight[:, None], axis=0)])
    first, last = np.arange(n)[:, None], np.arange(n)[None, :]
    inside = last >= first
    span = np.where(inside, mass[last + 1] - mass[first], 1.0)
    mean = np.where(inside[..., None], (total[last + 1] - total[first]) / span[..., None], np.inf)
    floor = np.minimum.accumulate(mean[:, ::-1], axis=1)[:, ::-1]
    reachable = np.where((first <= last)[..., None], floor, -np.inf)
    return np.asarray(reachable.max(axis=0))
