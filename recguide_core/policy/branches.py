"""Which prospective branches accompany a verify row (Sec. 5.1), for a whole batch.

Knows margins of the draft under verification and the limits of each request. A correction branch
assumes that the draft fails at a risky position p and is answered by the draft's best alternative;
the continuation branch assumes that the whole block passes. `propose` is the paper's rule and is
never priced; which of them pay is `pricing.worthwhile`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.records import MAX_BLOCK, BoolArray, BranchKind, FloatArray, IntArray

CORRECTIONS = 2
"""The earliest risky positions that get a branch."""
BRANCHES = CORRECTIONS + 1
DELTA = 0.5
"""Margin below which a position is risky (Sec. 6.1)."""

_SLOTS = np.arange(MAX_BLOCK)
_DRAFTED = (_SLOTS > 0) & (np.arange(MAX_BLOCK + 1)[:, None] > _SLOTS)
_LIFT = np.where(_DRAFTED, -np.inf, np.inf).astype(np.float32)
_KINDS = np.array([[BranchKind.CORRECTION], [BranchKind.CORRECTION], [BranchKind.CONTINUATION]])
_ONE, _LAST = np.uint32(1), np.uint8(MAX_BLOCK - 1)
_BLANK = np.array([-1, 0, -1, 0])[:, None]
"""Kind, parent, alt and block where there is no branch."""
_FRONT = np.full((2**BRANCHES, BRANCHES), BRANCHES)
"""Which places are used, as bits -> these places in order, then the blank one."""
for _bits in range(2**BRANCHES):
    _places = [j for j in range(BRANCHES) if _bits >> j & 1]
    _FRONT[_bits, : len(_places)] = _places


@dataclass(frozen=True, slots=True)
class BranchRule:
    """What may be proposed; the defaults are the paper's.

    Attributes:
        delta: a position is risky when its margin is below (strictly).
        corrections: correction branches at most, 0..2.
        continuation: whether full acceptance is prepared for.
    """

    delta: float = DELTA
    corrections: int = CORRECTIONS
    continuation: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """Branches of n verify rows, branch-major: first correction, second correction, continuation.

    Attributes:
        parent, alt, block: as in `records.Plan`, but int64 [3, n] and unused places not blanked.
        margin: M of the risky position; smallest of the block for the continuation, float32 [3, n].
        used: which places hold a branch, bool [3, n].
        risky: risky positions of each row before any branch was dropped, int64 [n].
    """

    parent: IntArray
    alt: IntArray
    block: IntArray
    margin: FloatArray
    used: BoolArray
    risky: IntArray

    @property
    def kind(self) -> IntArray:
        """`BranchKind` of each place, int64 [3, n]."""
        return np.broadcast_to(_KINDS, self.used.shape)

    @property
    def rank(self) -> IntArray:
        """0 or 1 for the corrections, the number of risky positions for the continuation."""
        first, second = np.zeros_like(self.risky), np.ones_like(self.risky)
        return np.stack([first, second, self.risky])

    def plan_grids(self) -> IntArray:
        """`branch_kind`, `_parent`, `_alt`, `_block` of a `Plan`, used ones first, [4, n, 3]."""
        rows = np.arange(len(self.risky))
        return self.placed(rows, len(rows))

    def placed(self, entry: IntArray, n: int) -> IntArray:
        """`plan_grids` of a plan of n entries, of which `entry` [m] are these rows."""
        m = len(entry)
        grid = np.empty((4, BRANCHES + 1, m), np.int64)
        grid[0, :-1], grid[1, :-1] = _KINDS, self.parent
        grid[2, :-1], grid[3, :-1] = self.alt, self.block
        grid[:, -1] = _BLANK
        bits = np.packbits(self.used, axis=0, bitorder="little")[0]
        order = (_FRONT * m).take(bits, axis=0)
        order += np.arange(m)[:, None]
        if m < n:
            # Column 3 m is the blank of the first row.
            mine, order = order, np.empty((n, BRANCHES), np.int64)
            order[:] = BRANCHES * m
            order[entry] = mine
        return np.asarray(grid.reshape(4, -1).take(order, axis=1))


def risky_positions(
    margin: FloatArray, block: IntArray, delta: float
) -> tuple[npt.NDArray[np.uint32], FloatArray]:
    """Where M_i < delta at slots 1..B-1, and the smallest margin there.

    Args:
        margin: float32 [n, MAX_BLOCK]; block: B, int64 [n].

    Returns:
        uint32 [n], bit i set where slot i is risky (the seed never is); float32 [n].
    """
    drafted = np.maximum(margin, _LIFT.take(block, axis=0))
    bits = np.packbits(drafted < delta, bitorder="little").view("<u4")
    # Column by column, because numpy pays for every short row of a reduction.
    return bits, np.minimum.reduce(np.ascontiguousarray(drafted.T), axis=0)


def propose(
    margin: FloatArray,
    alt: IntArray,
    block: IntArray,
    remaining: IntArray,
    room: IntArray,
    rule: BranchRule,
    correction_block: IntArray | None = None,
    continuation_block: IntArray | None = None,
) -> Proposal:
    """The paper's branches: at the earliest two risky positions, and behind the block.

    A continuation is prepared only when at most two positions are risky, counted before any is
    dropped. Dropped are branches without a next round (the budget ends at or before them), without
    room in the context, and corrections without an alternative token.

    Args:
        margin: M_i of the drafts, float32 [n, MAX_BLOCK].
        alt: replacement tokens, -1 for none, int64 [n, MAX_BLOCK].
        block: B of each verify row, int64 [n].
        remaining: tokens that may still be emitted, int64 [n].
        room: context positions behind the committed prefix (limit - P), int64 [n].
        correction_block, continuation_block: B of the next round under each hypothesis,
            int64 [n]; None repeats `block`; values below 2 prepare nothing.
    """
    bits, lowest = risky_positions(margin, block, rule.delta)
    count, n = np.bitwise_count(bits), len(block)
    parent, token, size = np.empty((3, BRANCHES, n), np.int64)
    parent[:2] = _two_lowest_bits(bits)
    parent[2] = block
    size[:2] = block if correction_block is None else correction_block
    size[2] = block if continuation_block is None else continuation_block
    at = parent[:2] + np.arange(0, MAX_BLOCK * n, MAX_BLOCK)
    token[:2] = alt.ravel().take(at)
    token[2] = -1
    near = np.empty((BRANCHES, n), np.float32)
    near[:2] = margin.ravel().take(at)
    near[2] = lowest

    fits = _allowed(rule.corrections, rule.continuation).take(count, axis=1)
    fits &= parent < remaining
    fits &= parent + size <= room
    fits &= size > 1
    fits[:2] &= token[:2] >= 0
    fits[2] &= block > 1
    return Proposal(parent, token, size, near, fits, count.astype(np.int64))


@functools.cache
def _allowed(corrections: int, continuation: bool) -> BoolArray:
    """Places that a rule fills with each number of risky positions, bool [3, MAX_BLOCK + 1]."""
    count = np.arange(MAX_BLOCK + 1)
    places = [(count > j) & (j < corrections) for j in range(CORRECTIONS)]
    return np.stack([*places, (count <= CORRECTIONS) & continuation])


def _two_lowest_bits(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Indices of the lowest set bit and of the next one, [2, n]; 0 where there is none."""
    both = np.empty((2, len(bits)), np.uint32)
    both[0] = bits
    np.bitwise_and(bits, bits - _ONE, out=both[1])
    # The bits below the lowest set one; all 32 where none is set, and 32 & 31 = 0.
    return np.asarray(np.bitwise_count((both & -both) - _ONE) & _LAST)
