"""P(hit): how often a prospective branch turns out to be the next draft.

Knows hit rates by block, kind, rank and margin; not what a hit is worth. A cell with few branches
leans on its kind and rank over all blocks and margins, so that no rate rests on a handful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from recguide_core.policy.branches import BRANCHES
from recguide_core.policy.value import Reals
from recguide_core.records import MAX_BLOCK, BoolArray, FloatArray, IntArray

MARGIN_EDGES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
_EDGES = np.array(MARGIN_EDGES, np.float32)
_BOUNDS = np.array(MARGIN_EDGES)
_BINS = len(MARGIN_EDGES) + 1
_PLACE = _BINS * np.arange(2 * BRANCHES).reshape(2, BRANCHES)
PRIOR = 20.0
"""Weight of the coarser rate, in branches."""


@dataclass(frozen=True, slots=True)
class BranchTrials:
    """Branches whose outcome is known, struct of arrays [n].

    Attributes:
        block: B of the verify row, int64; `kind`, `rank`, `margin`: as in `branches.Proposal`.
        hit: the branch became the next draft, bool.
    """

    block: IntArray
    kind: IntArray
    rank: IntArray
    margin: FloatArray
    hit: BoolArray


@dataclass(frozen=True, slots=True)
class BranchTable:
    """Hit rates for one delta (which positions are risky decides what rank means).

    Attributes:
        delta: the rule under which ranks were assigned.
        menu: block sizes, ascending, int64 [M].
        rate: P(hit), float64 [M, 2 kinds, 3 ranks, margin bins].
        count: branches behind it, int64, same shape.
    """

    delta: float
    menu: IntArray
    rate: Reals
    count: IntArray
    _row: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        larger = np.searchsorted(self.menu, np.arange(MAX_BLOCK + 1))
        cells = 2 * BRANCHES * _BINS
        object.__setattr__(self, "_row", np.minimum(larger, len(self.menu) - 1) * cells)

    def chance(
        self, block: IntArray, kind: IntArray, rank: IntArray, margin: FloatArray
    ) -> npt.NDArray[np.float64]:
        """P(hit), float64 of the broadcast shape; a block off the menu reads the next larger."""
        cell = self._row.take(block) + _PLACE[np.minimum(kind, 1), np.minimum(rank, BRANCHES - 1)]
        cell = cell + _BOUNDS.searchsorted(margin.astype(np.float64), "right")
        return self.rate.ravel().take(cell)

    def chances(
        self, block: IntArray, risky: IntArray, margin: FloatArray
    ) -> npt.NDArray[np.float64]:
        """`chance` of all places of a `branches.Proposal`, float64 [3, n].

        Args:
            block: B of the verify rows, risky: the proposal's, int64 [n]; margin: [3, n].
        """
        cell = _BOUNDS.searchsorted(margin.astype(np.float64), "right")
        cell += self._row.take(block)
        cell[1] += _BINS
        cell[2] += _BINS * (BRANCHES + np.minimum(risky, BRANCHES - 1))
        return self.rate.ravel().take(cell)

    def to_columns(self) -> dict[str, list[Any]]:
        """One row a cell: delta, block_size, kind, rank, bin_lo, bin_hi, hit_rate, count."""
        low, high = [0.0, *MARGIN_EDGES], [*MARGIN_EDGES, 1.0]
        at = np.indices(self.rate.shape).reshape(4, -1)
        return {
            "delta": [self.delta] * at.shape[1],
            "block_size": self.menu[at[0]].tolist(),
            "kind": at[1].tolist(),
            "rank": at[2].tolist(),
            "bin_lo": [low[i] for i in at[3]],
            "bin_hi": [high[i] for i in at[3]],
            "hit_rate": self.rate.ravel().tolist(),
            "count": self.count.ravel().tolist(),
        }

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]], delta: float) -> BranchTable:
        """The table of one delta among those in `columns`.

        Raises:
            ValueError: there is no row for that delta, or rows are missing.
        """
        at = np.isclose(np.asarray(columns["delta"], np.float64), delta)
        menu = np.unique(np.asarray(columns["block_size"], np.int64)[at])
        shape = (len(menu), 2, BRANCHES, len(MARGIN_EDGES) + 1)
        if not at.any() or at.sum() != np.prod(shape):
            raise ValueError(f"{int(at.sum())} rows for delta {delta}, {np.prod(shape)} expected")
        index = (
            np.searchsorted(menu, np.asarray(columns["block_size"], np.int64)[at]),
            np.asarray(columns["kind"], np.int64)[at],
            np.asarray(columns["rank"], np.int64)[at],
            np.searchsorted(MARGIN_EDGES, np.asarray(columns["bin_lo"])[at], side="right"),
        )
        rate, count = np.zeros(shape), np.zeros(shape, np.int64)
        rate[index] = np.asarray(columns["hit_rate"], np.float64)[at]
        count[index] = np.asarray(columns["count"], np.int64)[at]
        return cls(delta, menu, rate, count)


def fit_branches(trials: BranchTrials, menu: Sequence[int], delta: float) -> BranchTable:
    """Hit rates of the trials, each cell shrunk to its margin bin, that to kind and rank.

    Cells that nothing ever fell into keep the coarser rate; kinds without any trial never hit.
    """
    blocks = np.array([b for b in sorted(menu) if b > 1], np.int64)
    assert blocks.size and blocks[-1] <= MAX_BLOCK
    known = np.isin(trials.block, blocks)
    index = (
        np.searchsorted(blocks, trials.block[known]),
        trials.kind[known],
        np.minimum(trials.rank[known], BRANCHES - 1),
        np.searchsorted(_EDGES, trials.margin[known], side="right"),
    )
    shape = (len(blocks), 2, BRANCHES, len(MARGIN_EDGES) + 1)
    hits, count = np.zeros(shape), np.zeros(shape, np.int64)
    np.add.at(hits, index, trials.hit[known].astype(np.float64))
    np.add.at(count, index, 1)
    by_rank = _shrunk(hits.sum((0, 3)), count.sum((0, 3)), np.zeros((2, BRANCHES)), prior=1e-9)
    by_bin = _shrunk(hits.sum(0), count.sum(0), by_rank[..., None], PRIOR)
    return BranchTable(delta, blocks, _shrunk(hits, count, by_bin[None], PRIOR), count)


def _shrunk(hits: Reals, count: IntArray, towards: Reals, prior: float) -> Reals:
    return np.asarray((hits + prior * towards) / (count + prior))
