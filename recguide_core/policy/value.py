"""V_B(s, z): expected accepted length of a block, given verification history (Sec. 5.2).

Knows fitted survival curves and how to look them up for a whole batch; not how traces are made
(`calibration`) nor what a block costs (`cost`).

History z = (previous block, previous block fully accepted) selects a stratum, certainty s a bin in
it. Two sets of strata exist: the plain one, and the *lagged* one for branches, which are drafted
before the entropy of the current round exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from recguide_core.records import MAX_BLOCK, BoolArray, IntArray

Reals: TypeAlias = npt.NDArray[np.float64]

ANY = -1
"""`prev_block` of the stratum that pools all histories."""
NO_HISTORY = 0
"""`prev_block` of a request that has not completed a round: the cold start."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Survival curves of one history: bins of s by blocks of the menu.

    Attributes:
        prev_block, prev_full, lagged: the history z (or `ANY`, `NO_HISTORY`) and the table set.
        edges: ascending inner bin edges of s, float64 [bins - 1]; shared by all blocks.
        survival: P(A_B >= k), k = 1..MAX_BLOCK, float64 [bins + 1, menu, MAX_BLOCK]; the last bin
            is the unbinned one, for a missing s.
        weight: calibration weight of the cell, float64 [bins + 1, menu].
        rounds: rounds behind the cell, int64 [bins + 1, menu].
    """

    prev_block: int
    prev_full: bool
    lagged: bool
    edges: Reals
    survival: Reals
    weight: Reals
    rounds: IntArray


class ValueTable:
    """Strata packed for lookup: a search in the joint bin edges and one gather answer a batch.

    Args:
        menu: block sizes in ascending order.
        strata: fitted strata; the plain and the lagged set need one with `ANY` each.
    """

    def __init__(self, menu: Sequence[int], strata: Sequence[Stratum]) -> None:
        self.menu: IntArray = np.array(sorted(menu), dtype=np.int64)
        self.strata = tuple(strata)
        bins = max(len(s.edges) for s in strata) + 2
        self._survival: Reals = np.zeros((len(strata), bins, len(self.menu), MAX_BLOCK))
        for i, s in enumerate(strata):
            self._survival[i, : len(s.edges) + 1] = s.survival[:-1]
            self._survival[i, -1] = s.survival[-1]
        self._values: Reals = self._survival.sum(axis=3).reshape(-1, len(self.menu))
        # Behind the edges of all strata follow +inf, which only NaN is sorted behind.
        known = [s.edges for s in strata]
        self._edges = np.append(np.unique(np.concatenate(known)), np.inf)
        self._near = _float32_below(self._edges)
        self._spans = len(self._edges) + 1
        self._cell = self._joint_cells(bins)

    def _joint_cells(self, bins: int) -> tuple[IntArray, IntArray]:
        """Cell (stratum x bins + bin) of each history and joint bin, flat, plain and lagged."""
        joint = np.empty((len(self.strata), self._spans), np.int64)
        for i, s in enumerate(self.strata):
            # bisect_left: a value equal to an edge falls into the lower bin.
            below = np.searchsorted(s.edges, self._edges[:-1], side="right")
            joint[i, 0] = i * bins
            joint[i, 1:-1] = i * bins + below
            joint[i, -1] = (i + 1) * bins - 1
        plain, lagged = self._index()
        return joint[plain].ravel(), joint[lagged].ravel()

    def _index(self) -> IntArray:
        """Row of each (lagged, prev_block, prev_full); unknown histories use `ANY`."""
        index = np.zeros((2, MAX_BLOCK + 2, 2), np.int64)
        for lagged in (0, 1):
            rows = [(i, s) for i, s in enumerate(self.strata) if s.lagged == bool(lagged)]
            pooled = [i for i, s in rows if s.prev_block == ANY]
            assert len(pooled) == 1, "each table set pools all histories exactly once"
            index[lagged] = pooled[0]
            for i, s in rows:
                if s.prev_block == NO_HISTORY:
                    index[lagged, NO_HISTORY] = i
                elif s.prev_block > 0:
                    index[lagged, s.prev_block, int(s.prev_full)] = i
        return index

    def spans(self, s: npt.NDArray[np.floating]) -> IntArray:
        """Joint bin of each certainty, int64 [n]; what `cells` takes, for plain and lagged alike.

        NaN has a bin of its own, whose survival is the unbinned one of the stratum.
        """
        if s.dtype == np.float32:
            return self._near.searchsorted(s)
        return self._edges.searchsorted(s)

    def cells(
        self, spans: IntArray, prev_block: IntArray, prev_full: BoolArray, lagged: bool = False
    ) -> IntArray:
        """Cell of each history, int64 [n]; `values_at` reads it.

        Args:
            spans: see `spans`; prev_block, prev_full, lagged: see `values`.
        """
        # `ANY` is -1 and wraps around to the history that no request has.
        at = ((prev_block << 1) + prev_full) * self._spans + spans
        return self._cell[int(lagged)].take(at)

    def hypotheses(self, spans: IntArray, block: IntArray) -> IntArray:
        """Lagged cells of z = (block, False) and then of z = (block, True), int64 [2 n]."""
        both = np.empty((2, len(spans)), np.int64)
        np.add((block << 1) * self._spans, spans, out=both[0])
        np.add(both[0], self._spans, out=both[1])
        return self._cell[1].take(both.ravel())

    def values_at(self, cells: IntArray) -> Reals:
        """V_B of every block of the menu in each cell, float64 [n, menu]."""
        return self._values.take(cells, axis=0)

    def typical(self) -> Reals:
        """V_B over all histories and certainties, float64 [menu]."""
        pooled = next(s for s in self.strata if s.prev_block == ANY and not s.lagged)
        return np.asarray(pooled.survival[-1].sum(axis=1))

    def values(
        self,
        s: npt.NDArray[np.floating],
        prev_block: IntArray,
        prev_full: BoolArray,
        lagged: bool = False,
    ) -> Reals:
        """V_B of every block of the menu, float64 [n, menu].

        Args:
            s: certainty, [n]; NaN selects the unbinned survival of the stratum.
            prev_block, prev_full: z, int64 and bool [n]; prev_block `ANY` ignores z.
            lagged: use the strata for branches, where s ends one round earlier than z.
        """
        return self.values_at(self.cells(self.spans(s), prev_block, prev_full, lagged))

    def survival(
        self,
        s: npt.NDArray[np.floating],
        prev_block: IntArray,
        prev_full: BoolArray,
        lagged: bool = False,
    ) -> Reals:
        """P(A_B >= k) for k = 1..MAX_BLOCK, float64 [n, menu, MAX_BLOCK]; see `values`."""
        cells = self.cells(self.spans(s), prev_block, prev_full, lagged)
        return self._survival.reshape(-1, *self._survival.shape[2:]).take(cells, axis=0)

    def restricted(self, menu: Sequence[int]) -> ValueTable:
        """The same table with fewer blocks to choose from (histories stay)."""
        keep = np.flatnonzero(np.isin(self.menu, np.asarray(menu)))
        if len(keep) != len(set(menu)):
            raise ValueError(f"the table knows blocks {self.menu.tolist()}, not {sorted(menu)}")
        strata = [
            replace(
                s,
                survival=s.survival[:, keep],
                weight=s.weight[:, keep],
                rounds=s.rounds[:, keep],
            )
            for s in self.strata
        ]
        return ValueTable(self.menu[keep].tolist(), strata)

    def to_columns(self) -> dict[str, list[Any]]:
        """The rows of the value table: one for each stratum, bin and block.

        The unbinned row of a stratum has NaN in `bin_lo` and `bin_hi`; outer bins end at infinity.
        `prev_full` is -1 where all histories are pooled, `prev_block` 0 there and without history.
        """
        names = "block_size prev_block prev_full lagged bin_lo bin_hi value survival weight rounds"
        rows: dict[str, list[Any]] = {name: [] for name in names.split()}
        for s in self.strata:
            low = [-np.inf, *s.edges.tolist(), np.nan]
            high = [*s.edges.tolist(), np.inf, np.nan]
            z = (0, -1) if s.prev_block == ANY else (s.prev_block, int(s.prev_full))
            for i in range(len(low)):
                for j, block in enumerate(self.menu.tolist()):
                    curve = s.survival[i, j, :block]
                    row = (block, *z, s.lagged, low[i], high[i])
                    counts = (float(s.weight[i, j]), int(s.rounds[i, j]))
                    cell = (float(curve.sum()), curve.tolist(), *counts)
                    for name, item in zip(rows, (*row, *cell), strict=True):
                        rows[name].append(item)
        return rows

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]]) -> ValueTable:
        """Rebuild a table from the rows of `to_columns`, in any order.

        Raises:
            ValueError: rows are missing or doubled.
        """
        menu = sorted({int(b) for b in columns["block_size"]})
        where: dict[tuple[int, bool, bool], list[int]] = {}
        for i, key in enumerate(
            zip(columns["prev_block"], columns["prev_full"], columns["lagged"], strict=True)
        ):
            block, full, lagged = key
            z = (ANY, False) if full < 0 else (int(block), bool(full))
            where.setdefault((*z, bool(lagged)), []).append(i)
        strata = [_stratum(columns, menu, key, rows) for key, rows in where.items()]
        return cls(menu, strata)


def _float32_below(edges: Reals) -> npt.NDArray[np.float32]:
    """Largest float32 that does not exceed each edge: float32 values compare with it as with it."""
    near = edges.astype(np.float32)
    return np.where(near > edges, np.nextafter(near, np.float32(-np.inf)), near)


def _stratum(
    columns: Mapping[str, Sequence[Any]],
    menu: Sequence[int],
    key: tuple[int, bool, bool],
    rows: Sequence[int],
) -> Stratum:
    low = np.array([columns["bin_lo"][i] for i in rows], dtype=np.float64)
    lows = np.unique(low[~np.isnan(low)])
    bins = len(lows) + 1
    if len(rows) != bins * len(menu):
        raise ValueError(
            f"history {key} has {len(rows)} rows, {bins} bins x {len(menu)} blocks need "
            f"{bins * len(menu)}"
        )
    survival = np.zeros((bins, len(menu), MAX_BLOCK))
    weight = np.zeros((bins, len(menu)))
    rounds = np.zeros((bins, len(menu)), np.int64)
    for i, lo in zip(rows, low, strict=True):
        b = bins - 1 if np.isnan(lo) else int(np.searchsorted(lows, lo))
        j = menu.index(int(columns["block_size"][i]))
        curve = np.asarray(columns["survival"][i], dtype=np.float64)
        survival[b, j, : len(curve)] = curve
        weight[b, j] = columns["weight"][i]
        rounds[b, j] = columns["rounds"][i]
    return Stratum(*key, lows[1:], survival, weight, rounds)
