"""Price of each block where all requests share one packed forward, kept from step to step.

A round takes part in two steps (plain AR in one, 2 - h with overlap). A step costs what this one
costs, plus the requests times dT of widening one row from the step's mean width to B: the batch is
priced as if everybody took that block, along the tangent at the present shape. Where T is affine
in tokens this is T_C(B) exactly.

All of it is a line in K/V tokens, so the lines of a shape are found once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.policy.cost import MIXED, Milliseconds
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.value import Reals
from recguide_core.records import IntArray

GRAIN = 8
"""Shapes are told apart by the GRAIN-th part of a token a request; nearer ones share a tangent."""
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a step with every row as wide as each block: base + KV tokens x per_kv, float64 [menu];
    of one more token in each row likewise.
    """

    step: Milliseconds
    step_kv: Milliseconds
    token: Milliseconds
    token_kv: Milliseconds


class RaggedPrices:
    """Prices of the blocks of a menu under packed prices."""

    def __init__(self, prices: PackedPrices, menu: IntArray) -> None:
        self._prices = prices
        self._blocks: list[int] = menu.tolist()
        self._known: dict[tuple[int, int], _Lines] = {}

    def __call__(
        self,
        requests: int,
        tokens: int,
        kv_tokens: int,
        forwards: Reals,
        extra: Reals | None = None,
    ) -> Milliseconds:
        """Milliseconds of a round with each block, float64 [menu].

        Args:
            requests, tokens, kv_tokens: size of the coming forward, as far as it is known.
            forwards: steps of a round with each block; extra: query tokens of a round beside its
                draft and verify rows (branches), None for none; [menu].
        """
        requests = max(requests, 1)
        tokens = grained(requests, tokens)
        lines = self._known.get((requests, tokens))
        if lines is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            lines = self._known[requests, tokens] = self._lines(requests, tokens)
        step = np.maximum(lines.step + kv_tokens * lines.step_kv, 0.0) * forwards
        if extra is None:
            return np.asarray(step)
        return np.asarray(step + extra * (lines.token + kv_tokens * lines.token_kv))

    def _lines(self, requests: int, tokens: int) -> _Lines:
        width = tokens / requests
        query = [float(tokens)] + [max(tokens + (b - width), requests) for b in self._blocks]
        line = np.array(self._prices.lines(MIXED, requests, tuple(query)))
        blocks = np.array(self._blocks, np.float64)
        added = np.array(query[1:]) - tokens
        # A row of the mean width adds no token and needs no slope.
        slope = requests * (line[1:] - line[0]) / np.where(added == 0.0, 1.0, added)[:, None]
        step = line[0] + slope * (blocks - width)[:, None]
        return _Lines(step[:, 0], step[:, 1], slope[:, 0], slope[:, 1])


def grained(requests: int, tokens: int) -> int:
    """Query tokens of a shape, to the GRAIN-th part of a token a request."""
    grain = requests // GRAIN
    return max(tokens if grain < 2 else grain * round(tokens / grain), requests)
