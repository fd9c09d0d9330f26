"""T: what a forward costs, and the views of it that the policy needs.

Knows shapes of forwards and milliseconds; not where the numbers came from. `CostModel` is the one
interface: `InterpolatedCost` reads it off the rows of a cost table, a fitted law may implement it
as well. T_C(B), the cost of a serial draft-verify round of C requests, and the marginal price of
adding tokens to a packed forward are functions over any model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from recguide_core.records import IntArray, StepShape

Reals: TypeAlias = npt.NDArray[np.float64]
Milliseconds: TypeAlias = npt.NDArray[np.float64]

KINDS = ("prefill", "ar", "draft", "verify", "fused", "mixed")
"""Kinds of forward of the cost table; `Shapes.kind` holds indices into this."""
PREFILL, AR, DRAFT, VERIFY, FUSED, MIXED = range(len(KINDS))

# What a kind is priced by: its own rows, else those of its nearest relatives, named first. A token
# of plain AR is a block of one, so such rows are the low end of the others' curves. Forwards that
# carry rows of several kinds are priced by their tokens, whatever these were timed in.
_PRICED_BY = {
    PREFILL: ((PREFILL,), (VERIFY, AR), (DRAFT, AR)),
    AR: ((AR,), (VERIFY,), (DRAFT,)),
    DRAFT: ((DRAFT, AR), (VERIFY, AR)),
    VERIFY: ((VERIFY, AR), (DRAFT, AR)),
    FUSED: (),
    MIXED: (),
}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of n forwards, struct of arrays; the fields are those of `StepShape`, int64 [n]."""

    kind: IntArray
    requests: IntArray
    query_tokens: IntArray
    kv_tokens: IntArray
    block_size: IntArray
    branches: IntArray

    @classmethod
    def of(cls, steps: Sequence[StepShape]) -> Shapes:
        """From single shapes, as the engine reports them."""
        rows = [
            (KINDS.index(s.kind), s.requests, s.query_tokens, s.kv_tokens, s.block_size, s.branches)
            for s in steps
        ]
        return cls(*np.array(rows, dtype=np.int64).reshape(len(rows), 6).T)

    @classmethod
    def uniform(
        cls,
        kind: int,
        requests: npt.ArrayLike,
        block: npt.ArrayLike,
        kv_per_request: npt.ArrayLike,
    ) -> Shapes:
        """Forwards in which each of `requests` requests has one row of `block` tokens."""
        n, b, kv = np.broadcast_arrays(
            np.atleast_1d(np.asarray(requests, np.int64)),
            np.asarray(block, np.int64),
            np.asarray(kv_per_request, np.float64),
        )
        zeros = np.zeros(n.shape, np.int64)
        return cls(zeros + kind, n, n * b, (n * kv).astype(np.int64), b, zeros)


class CostModel(Protocol):
    """Price of forwards."""

    def ms(self, shapes: Shapes) -> Milliseconds:
        """Milliseconds of each forward, float64 [n], >= 0."""
        ...


def round_ms(
    model: CostModel,
    requests: npt.ArrayLike,
    block: npt.ArrayLike,
    kv_per_request: npt.ArrayLike = 0.0,
) -> Milliseconds:
    """T_C(B): one serial round of C = `requests` requests with block B, broadcast together.

    Draft plus verify forward (Eq. 3); B = 1 is plain AR and has one forward only.
    """
    verify = Shapes.uniform(VERIFY, requests, block, kv_per_request)
    plain = verify.block_size == 1
    second = model.ms(replace(verify, kind=np.where(plain, AR, VERIFY)))
    first = model.ms(replace(verify, kind=np.full(len(plain), DRAFT)))
    return second + np.where(plain, 0.0, first)


def marginal_ms(model: CostModel, base: Shapes, tokens: npt.ArrayLike) -> Milliseconds:
    """dT: what adding `tokens` query tokens to each of the forwards `base` costs, in ms.

    The tokens join requests that are in the forward already, so prefixes are read once.
    """
    more = replace(base, query_tokens=base.query_tokens + np.asarray(tokens, np.int64))
    return np.maximum(model.ms(more) - model.ms(base), 0.0)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Timed shapes over (requests, tokens per request): mean ms, and mean KV tokens read.

    A KV token beyond those costs `per_kv[0] + per_kv[1] x width` ms: it is read once for a
    request and met by each of its query tokens.
    """

    requests: Reals
    width: Reals
    ms: Milliseconds
    kv: Reals
    per_kv: tuple[float, float]


class InterpolatedCost:
    """Piecewise linear between the timed shapes of a cost table.

    Axes are requests and query tokens per request; beyond the last timed value the last segment
    is continued, below the first the first value holds. KV tokens enter by one slope per kind,
    taken from rows that differ in nothing else (0 when there are none).

    Args:
        columns: `kind` (names or indices into `KINDS`), `requests`, `query_tokens`,
            `kv_tokens`, `mean_ms`, all [rows].
    """

    def __init__(self, columns: Mapping[str, npt.ArrayLike]) -> None:
        names = np.asarray(columns["kind"])
        kind = names if names.dtype.kind in "iu" else np.array([KINDS.index(k) for k in names])
        requests, tokens, kv, ms = (
            np.asarray(columns[name], np.float64)
            for name in ("requests", "query_tokens", "kv_tokens", "mean_ms")
        )
        if not len(kind):
            raise ValueError("a cost table without rows has no prices")
        self._grids = []
        for k in range(len(KINDS)):
            groups = (g for g in _PRICED_BY[k] if (kind == g[0]).any())
            group = next(groups, (AR, DRAFT, VERIFY, FUSED, MIXED))
            rows = np.isin(kind, group)
            rows = rows if rows.any() else np.ones(len(kind), bool)
            self._grids.append(_grid(*(c[rows] for c in (requests, tokens, kv, ms))))

    def ms(self, shapes: Shapes) -> Milliseconds:
        out = np.empty(len(shapes.kind))
        n = np.maximum(shapes.requests, 1).astype(np.float64)
        width = shapes.query_tokens / n
        for k in np.flatnonzero(np.bincount(shapes.kind, minlength=len(KINDS))):
            at = shapes.kind == k
            out[at] = _read(self._grids[k], n[at], width[at], shapes.kv_tokens[at])
        return out


def _grid(requests: Reals, tokens: Reals, kv: Reals, ms: Milliseconds) -> _Grid:
    width = tokens / requests
    rows, columns = np.unique(requests), np.unique(width)
    curves, reads = [], []
    for w in columns:
        at = width == w
        n, where = np.unique(requests[at], return_inverse=True)
        count = np.bincount(where)
        curves.append(_extended(rows, n, np.bincount(where, ms[at]) / count))
        reads.append(_extended(rows, n, np.bincount(where, kv[at]) / count))
    slope = _kv_slope(np.stack([requests, tokens], 1), width, kv, ms)
    return _Grid(rows, columns, np.stack(curves, 1), np.stack(reads, 1), slope)


_KV_SHARE = 0.8
"""Of a timed forward, reading its KV is never more than this."""


def _kv_slope(shape: Reals, width: Reals, kv: Reals, ms: Milliseconds) -> tuple[float, float]:
    """ms per KV token, constant and per unit of width, both >= 0."""
    _, where = np.unique(shape, axis=0, return_inverse=True)
    where = where.ravel()
    count = np.bincount(where)
    dk = kv - (np.bincount(where, kv) / count)[where]
    dm = ms - (np.bincount(where, ms) / count)[where]
    terms = np.stack([dk, dk * width], axis=1)
    best, least = np.zeros(2), float(dm @ dm)
    for used in ([0, 1], [0], [1]):
        weight = np.zeros(2)
        weight[used] = np.linalg.lstsq(terms[:, used], dm, rcond=None)[0]
        error = float(np.square(dm - terms @ weight).sum())
        if (weight >= 0).all() and error < least:
            best, least = weight, error
    read = kv * (best[0] + best[1] * width)
    most = float((read / ms).max(initial=0.0))
    if most > _KV_SHARE:
        best = best * (_KV_SHARE / most)
    return float(best[0]), float(best[1])


def _extended(x: Reals, xp: Reals, fp: Reals) -> Reals:
    """`np.interp` that continues the last segment to the right instead of the last value."""
    y = np.interp(x, xp, fp)
    if len(xp) > 1:
        slope = max((fp[-1] - fp[-2]) / (xp[-1] - xp[-2]), 0.0)
        y = y + slope * np.maximum(x - xp[-1], 0.0)
    return y


def _read(grid: _Grid, n: Reals, width: Reals, kv: IntArray) -> Milliseconds:
    constant, per_width = grid.per_kv
    slope = constant + per_width * width
    if len(grid.requests) == 1:
        # Timed at one number of requests (prompts usually are): more of them are more tokens.
        width, n = width * n / grid.requests[0], np.full(len(n), grid.requests[0])
    i, u = _position(grid.requests, n)
    j, v = _position(grid.width, width)
    i1, j1 = np.minimum(i + 1, len(grid.requests) - 1), np.minimum(j + 1, len(grid.width) - 1)

    def between(node: Reals) -> Reals:
        low = node[i, j] + u * (node[i1, j] - node[i, j])
        high = node[i, j1] + u * (node[i1, j1] - node[i, j1])
        return np.asarray(low + v * (high - low))

    return np.maximum(between(grid.ms) + slope * (kv - between(grid.kv)), 0.0)


def _position(knots: Reals, x: Reals) -> tuple[IntArray, Reals]:
    """Segment index and the fraction within it; the fraction passes 1 beyond the last knot."""
    if len(knots) == 1:
        return np.zeros(len(x), np.int64), np.zeros(len(x))
    i = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    return i, np.maximum((x - knots[i]) / (knots[i + 1] - knots[i]), 0.0)
