"""What RecGuide would have learned where accepted lengths follow a law: replays on random weights.

A device check has no text, so nothing can be calibrated there. The law's survival curve is the
value table (history says nothing), the measured forwards are the costs, and branches hit as the
script of `kernels.check.acceptance` draws them: the first risky position is the coming mismatch
and its branch is right, the second never is, and a full block's continuation is right with h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide_core.engine.guidance import FULL_MENU, Guidance
from recguide_core.policy.branch_table import MARGIN_EDGES, BranchTable
from recguide_core.policy.branches import BRANCHES, BranchRule
from recguide_core.policy.cost import FUSED, CostModel, Shapes, round_ms
from recguide_core.policy.value import ANY, Reals, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK, IntArray

_MENU = np.array(FULL_MENU)


@dataclass(frozen=True, slots=True)
class Law:
    """How rounds end.

    Attributes:
        survival: P(A >= k) of an endless block, k = 1..MAX_BLOCK, float64 [MAX_BLOCK].
        hit_rate: h, the share of rounds whose branch is there and right.
    """

    survival: Reals
    hit_rate: float

    @property
    def values(self) -> Reals:
        """Mean accepted length of each block of the menu."""
        return np.asarray(self.survival.cumsum()[_MENU - 1])

    @property
    def rows(self) -> Reals:
        """Branch rows of a round with each block: the mismatch, the place behind it, the end."""
        full = self.survival[_MENU - 1]
        return np.asarray(1.0 + 2.0 * self.hit_rate * (1.0 - full))


def law_guidance(law: Law, cost: CostModel, loads: Sequence[int], context: int) -> Guidance:
    """Tables of the law and rho_C of its best block, serial or overlapped, at each load.

    Args:
        context: committed tokens of a request.
    """
    rho, overlap = {}, {}
    for load in loads:
        serial = round_ms(cost, load, _MENU, context)
        merged = (2.0 - law.hit_rate) * cost.ms(_fused(load, law.rows, context))
        better = (merged < serial) & (_MENU > 1)
        rho[load] = float((law.values / np.where(better, merged, serial)).max())
        overlap[load] = {
            block: (law.hit_rate, float(rows)) if pays else (0.0, 0.0)
            for block, rows, pays in zip(FULL_MENU, law.rows, better.tolist(), strict=True)
        }
    return Guidance(
        value=_values(law),
        cost=cost,
        rho=rho,
        branches=_branches(law),
        rule=BranchRule(),
        overlap=overlap,
    )


def _fused(load: int, rows: Reals, context: int) -> Shapes:
    n = np.full(len(_MENU), load)
    branches = np.rint(load * rows).astype(np.int64)
    tokens = n * _MENU + branches * _MENU
    return Shapes(n * 0 + FUSED, n, tokens, n * context, _MENU, branches)


def _values(law: Law) -> ValueTable:
    curve = np.zeros((2, len(FULL_MENU), MAX_BLOCK))
    for j, block in enumerate(FULL_MENU):
        curve[:, j, :block] = law.survival[:block]
    ones = np.ones(curve.shape[:2])
    strata = [
        Stratum(ANY, False, lagged, np.empty(0), curve, ones, ones.astype(np.int64))
        for lagged in (False, True)
    ]
    return ValueTable(FULL_MENU, strata)


def _branches(law: Law) -> BranchTable:
    blocks: IntArray = _MENU[_MENU > 1]
    rate = np.zeros((len(blocks), 2, BRANCHES, len(MARGIN_EDGES) + 1))
    full = law.survival[blocks - 1]
    # No position is risky when the block passes or when the draw is a miss.
    calm = full + (1.0 - full) * (1.0 - law.hit_rate)
    rate[:, 0, 0] = 1.0
    rate[:, 1, 0] = (full * law.hit_rate / calm)[:, None]
    return BranchTable(BranchRule().delta, blocks, rate, np.zeros(rate.shape, np.int64))
