"""How far V_B(s, z) tells rounds of the same block apart: the slope of accepted over promised.

Where the tables suit the texts, a round that was promised two tokens more brings two more, and the
slope is 1. Where they do not, differences of V are noise; whoever follows them picks the luckiest
noise. Knows promises and outcomes of blocks; not why a block was chosen: a slope over the promises
does not depend on which of them were taken.
"""

from __future__ import annotations

import numpy as np

from recguide_core.policy.value import Reals
from recguide_core.records import IntArray

_PRIOR_ROUNDS = 30.0
"""Rounds of average spread that a slope of 1 counts for."""
_ROUND = 0.997
"""What a settled round leaves of the weight of those before it."""


class Trust:
    """Decayed regression of accepted on promised tokens, within each block and over all of them.

    Args:
        blocks: size of the menu.

    Attributes:
        slope: 0 (V says nothing about the round) .. 1 (all it says is right), beside `scale`.
    """

    def __init__(self, blocks: int) -> None:
        self.slope = 1.0
        # Weight, promised, accepted, promised squared, promised x accepted of each block.
        self._moments: Reals = np.zeros((5, blocks))

    def add(self, index: IntArray, promised: Reals, accepted: IntArray, scale: Reals) -> None:
        """Rounds of blocks `index` [n] were promised and have got so many tokens, [n] each.

        Args:
            promised: V of the tables; scale: what V of each block is multiplied by, [blocks]. It
                moves, and promises that moved with it would look like spread.
        """
        moments, blocks = self._moments, self._moments.shape[1]
        moments *= _ROUND ** len(index)
        terms = (None, promised, accepted, promised * promised, promised * accepted)
        for row, term in zip(moments, terms, strict=True):
            row += np.bincount(index, term, blocks)
        weight, hoped, got, squares, products = moments
        mean = hoped / np.maximum(weight, 1e-9)
        spread = float(np.add.reduce((squares - mean * hoped) * scale * scale))
        shared = float(np.add.reduce((products - mean * got) * scale))
        prior = _PRIOR_ROUNDS * spread / max(float(np.add.reduce(weight)), 1.0)
        if spread > 1e-6:
            self.slope = min(max((prior + shared) / (prior + spread), 0.0), 1.0)
