"""Which prospective branches accompany a verify row (Sec. 5.1), for a whole batch.

Knows margins of the draft under verification and the limits of each request. A correction branch
assumes that the draft fails at a risky position p and is answered by the draft's best alternative;
the continuation branch assumes that the whole block passes. `propose` is the paper's rule and is
never priced; which of them pay is `pricing.worthwhile`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.records import BoolArray, BranchKind, FloatArray, IntArray

CORRECTIONS = 2
"""The earliest risky positions that get a branch."""
BRANCHES = CORRECTIONS + 1
DELTA = 0.5
"""Margin below which a position is risky (Sec. 6.1)."""


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
    """Branches of n verify rows, in the grids of `records.Plan` (int64 [n, 3], used ones first).

    `kind`, `parent`, `alt`, `block` are the plan's; `rank` is 0 or 1 for the first and second
    correction and the number of risky positions for the continuation; `margin` float32 [n, 3] is
    that of the risky position, for the continuation the smallest of the block. `risky` counts
    the risky positions of the row before anything was dropped, int64 [n].
    """

    kind: IntArray
    parent: IntArray
    alt: IntArray
    block: IntArray
    rank: IntArray
    margin: FloatArray
    risky: IntArray

    @property
    def used(self) -> BoolArray:
        return np.asarray(self.kind >= 0)

    def keep(self, mask: BoolArray) -> Proposal:
        """Without the branches where `mask` [n, 3] is False; used ones stay in front."""
        kind = np.where(mask, self.kind, -1)
        return _packed(kind, self.parent, self.alt, self.block, self.rank, self.margin, self.risky)


def risky_positions(
    margin: FloatArray, block: IntArray, delta: float
) -> tuple[BoolArray, FloatArray]:
    """M_i < delta at slots 1..B-1, bool [n, W], and the smallest margin there, float32 [n].

    The seed is never risky.
    """
    slots = np.arange(margin.shape[1])
    inside = (slots > 0) & (slots < block[:, None])
    drafted = np.where(inside, margin, np.float32(1))
    return inside & (margin < delta), drafted.min(axis=1)


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
        margin: M_i of the drafts, float32 [n, W]; alt: replacement tokens, -1 none, int64 [n, W].
        block: B of each verify row, int64 [n].
        remaining: tokens that may still be emitted, int64 [n].
        room: context positions behind the committed prefix (limit - P), int64 [n].
        correction_block, continuation_block: B of the next round under each hypothesis,
            int64 [n]; None repeats `block`; values below 2 prepare nothing.
    """
    after_miss = block if correction_block is None else correction_block
    after_full = block if continuation_block is None else continuation_block
    rows = np.arange(len(block))
    risky, lowest = risky_positions(margin, block, rule.delta)
    count = risky.sum(axis=1)

    first = risky.argmax(axis=1)
    risky[rows, first] = False
    second = risky.argmax(axis=1)
    parent = np.stack([first, second, block], axis=1)
    size = np.stack([after_miss, after_miss, after_full], axis=1)
    token = np.full((len(block), BRANCHES), -1, np.int64)
    token[:, :2] = alt[rows[:, None], parent[:, :2]]
    kind = np.empty((len(block), BRANCHES), np.int64)
    kind[:, :2] = BranchKind.CORRECTION
    kind[:, 2] = BranchKind.CONTINUATION

    fits = (parent < remaining[:, None]) & (parent + size <= room[:, None]) & (size > 1)
    fits[:, :2] &= (count[:, None] > [0, 1]) & (token[:, :2] >= 0)
    fits[:, min(rule.corrections, CORRECTIONS) : CORRECTIONS] = False
    fits[:, 2] &= (count <= CORRECTIONS) & rule.continuation & (block > 1)

    nearest = np.empty((len(block), BRANCHES), np.float32)
    nearest[:, :2] = margin[rows[:, None], parent[:, :2]]
    nearest[:, 2] = lowest
    rank = np.stack([np.zeros_like(count), np.ones_like(count), count], axis=1)
    return _packed(np.where(fits, kind, -1), parent, token, size, rank, nearest, count)


def _packed(
    kind: IntArray,
    parent: IntArray,
    alt: IntArray,
    block: IntArray,
    rank: IntArray,
    margin: FloatArray,
    risky: IntArray,
) -> Proposal:
    """Move used branches to the front and blank the rest."""
    used = kind >= 0
    if (used[:, 1:] & ~used[:, :-1]).any():
        order = np.argsort(~used, axis=1, kind="stable")
        kind, parent, alt, block, rank = (
            np.take_along_axis(grid, order, axis=1) for grid in (kind, parent, alt, block, rank)
        )
        margin = np.take_along_axis(margin, order, axis=1)
        used = kind >= 0
    return Proposal(
        kind=kind,
        parent=np.where(used, parent, 0),
        alt=np.where(used, alt, -1),
        block=np.where(used, block, 0),
        rank=rank,
        margin=margin,
        risky=risky,
    )
