"""Which prospective branches accompany a verify row (Sec. 5.1), for a whole batch.

Knows margins of the draft under verification and the limits of each request. A correction branch
assumes that the draft fails at a risky position p and is answered by the draft's best alternative;
the continuation branch assumes that the whole block passes. `propose` is the paper's rule and is
never priced; which of them pay is `pricing.worthwhile`.
"""

from __future__ import annotations

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
_KINDS = np.array([[BranchKind.CORRECTION], [BranchKind.CORRECTION], [BranchKind.CONTINUATION]])
_RANKS = np.array([[0], [1]])
_PLACES = np.array([[1], [2], [4]])
_FRONT = np.array(
    [
        np.argsort([not (used >> j) & 1 for j in range(BRANCHES)], kind="stable")
        for used in range(2**BRANCHES)
    ]
)


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
        kind, parent, alt, block: as in `records.Plan`, but [3, n] and unused places not blanked.
        rank: 0 or 1 for the corrections, the number of risky positions for the continuation.
        margin: M of the risky position; smallest of the block for the continuation, float32.
        used: which places hold a branch, bool [3, n].
        risky: risky positions of each row before any branch was dropped, int64 [n].
    """

    kind: IntArray
    parent: IntArray
    alt: IntArray
    block: IntArray
    rank: IntArray
    margin: FloatArray
    used: BoolArray
    risky: IntArray

    def plan_grids(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """`branch_kind`, `_parent`, `_alt`, `_block` of a `Plan`, int64 [n, 3], used ones first."""
        n = len(self.risky)
        grid = np.empty((4, BRANCHES, n), np.int64)
        for i, (column, empty) in enumerate(
            ((self.kind, -1), (self.parent, 0), (self.alt, -1), (self.block, 0))
        ):
            grid[i] = np.where(self.used, column, empty)
        # Which places are used, as a number, names the order that brings those to the front.
        order = _FRONT[(self.used * _PLACES).sum(axis=0)] * n + np.arange(n)[:, None]
        kind, parent, alt, block = grid.reshape(4, -1)[:, order]
        return kind, parent, alt, block


def risky_positions(
    margin: FloatArray, block: IntArray, delta: float
) -> tuple[npt.NDArray[np.uint32], FloatArray]:
    """Where M_i < delta at slots 1..B-1, and the smallest margin there.

    Args:
        margin: float32 [n, MAX_BLOCK]; block: B, int64 [n].

    Returns:
        uint32 [n], bit i set where slot i is risky (the seed never is); float32 [n].
    """
    drafted = np.where(_DRAFTED[block], margin, np.float32(np.inf))
    bits = np.packbits(drafted < delta, axis=1, bitorder="little")
    return bits.view("<u4")[:, 0], drafted.min(axis=1)


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
    count = np.bitwise_count(bits).astype(np.int64)
    n = len(block)
    kind, parent, token, size, rank = np.empty((5, BRANCHES, n), np.int64)
    kind[:], rank[:2] = _KINDS, _RANKS
    rank[2] = count
    parent[0] = _lowest_bit(bits)
    parent[1] = _lowest_bit(bits & (bits - np.uint32(1)))
    parent[2] = block
    size[:2] = block if correction_block is None else correction_block
    size[2] = block if continuation_block is None else continuation_block
    at = parent[:2] + np.arange(0, MAX_BLOCK * n, MAX_BLOCK)
    token[:2] = alt.ravel().take(at)
    token[2] = -1
    near = np.empty((BRANCHES, n), np.float32)
    near[:2] = margin.ravel().take(at)
    near[2] = lowest

    fits = (parent < remaining) & (parent + size <= room) & (size > 1)
    fits[:2] &= (count > _RANKS) & (token[:2] >= 0)
    fits[rule.corrections : CORRECTIONS] = False
    fits[2] &= (count <= CORRECTIONS) & (block > 1) & rule.continuation
    return Proposal(kind, parent, token, size, rank, near, fits, count)


def _lowest_bit(bits: npt.NDArray[np.uint32]) -> IntArray:
    """Index of the lowest set bit; 0 where none is set."""
    return np.asarray(np.bitwise_count((bits & -bits) - (bits > 0)), np.int64)
