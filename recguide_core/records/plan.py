"""What each request of a step does, and what its round came to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.records.kinds import BoolArray, FloatArray, IntArray


@dataclass(slots=True)
class Plan:
    """What each request of a step does, aligned with `who` (n requests, at most K branches each).

    Attributes:
        who: slots of the requests, int64 [n].
        act: `Act` values, int64 [n].
        block: B of the draft or width of the verify row, int64 [n].
        branch_kind: `BranchKind` or -1 for none, int64 [n, K]; used branches come first.
        branch_parent: tokens of the verify row that the branch sees, int64 [n, K].
        branch_alt: token at slot 0 of the branch, or -1 for a MASK there, int64 [n, K].
        branch_block: B of the branch, int64 [n, K].
    """

    who: IntArray
    act: IntArray
    block: IntArray
    branch_kind: IntArray
    branch_parent: IntArray
    branch_alt: IntArray
    branch_block: IntArray

    @classmethod
    def empty(cls, who: IntArray, branches: int = 0) -> Plan:
        """A plan in which everybody idles."""
        n = len(who)
        act, block = np.zeros((2, n), np.int64)
        if not branches:
            # Grids without a column hold nothing that anybody could write.
            grid = np.empty((n, 0), np.int64)
            return cls(who, act, block, grid, grid, grid, grid)
        none, nothing = np.zeros((2, 2, n, branches), np.int64)
        none -= 1
        return cls(who, act, block, none[0], nothing[0], none[1], nothing[1])


@dataclass(slots=True)
class Outcome:
    """What one step's rounds came to, aligned with the verifying requests of a `Plan` (m of them).

    Produced by the engine from tokens, or by the simulator from an acceptance model; both then
    go through the same `advance`.

    Attributes:
        who: slots, int64 [m]; `width`: verified width B, int64 [m].
        matched: accepted drafts (A - 1), int64 [m]; full when matched = B - 1.
        entropy: e_t over the round's valid decisions in nats, float32 [m].
        hit: index of the reusable branch of the request, -1 for none, int64 [m].
        hit_block: B of that branch, int64 [m].
    """

    who: IntArray
    width: IntArray
    matched: IntArray
    entropy: FloatArray
    hit: IntArray
    hit_block: IntArray

    @property
    def full(self) -> BoolArray:
        return np.asarray(self.matched == self.width - 1)
