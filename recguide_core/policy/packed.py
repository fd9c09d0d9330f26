"""T of a packed forward as a curve over its tokens, kept from step to step.

Knows a cost model. A step's requests and prefix hardly change from the last one, so the curve of
each coarse shape is computed once and pricing a plan is one interpolation.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from recguide_core.policy.cost import CostModel, Milliseconds, Shapes

_FINE = 256
"""Tokens up to which every count has its own knot; from there on knots are 2 % apart."""
_GRAIN = 1.1
"""Curves serve prefixes within this factor."""


class PackedPrices:
    """Memoised view of a cost model for forwards that carry rows of many kinds.

    Args:
        model: where the prices come from.
        most_tokens: query tokens of the largest forward that will be priced.
    """

    def __init__(self, model: CostModel, most_tokens: int = 1 << 15) -> None:
        steps = max(math.ceil(math.log(max(most_tokens, _FINE) / _FINE, 1.02)), 0)
        coarse = np.rint(_FINE * 1.02 ** np.arange(1, steps + 1))
        self.model = model
        self._tokens = np.unique(np.concatenate([np.arange(_FINE + 1), coarse]).astype(np.int64))
        self._curves: dict[tuple[int, int, int], Milliseconds] = {}

    def ms(
        self, kind: int, requests: int, tokens: npt.NDArray[np.int64] | Milliseconds, kv_tokens: int
    ) -> Milliseconds:
        """Milliseconds of forwards of `requests` requests with `tokens` query tokens, [n].

        Args:
            kind: index into `cost.KINDS`.
            kv_tokens: committed prefix tokens that the forward reads.
        """
        coarse_kv = round(math.log(max(kv_tokens, 1), _GRAIN))
        key = (kind, requests, coarse_kv)
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = self._curve(kind, requests, round(_GRAIN**coarse_kv))
        return np.interp(tokens, self._tokens, curve)

    def _curve(self, kind: int, requests: int, kv_tokens: int) -> Milliseconds:
        query = np.maximum(self._tokens, requests)
        flat = np.full(len(query), 0)
        return self.model.ms(
            Shapes(
                kind=flat + kind,
                requests=flat + max(requests, 1),
                query_tokens=query,
                kv_tokens=flat + kv_tokens,
                block_size=-(-query // max(requests, 1)),
                branches=flat,
            )
        )
