"""T of a packed forward as a curve over its tokens, kept from step to step.

Knows a cost model. The curve of each number of requests is computed once, and pricing a plan is
one interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recguide_core.policy.cost import CostModel, Milliseconds, Shapes
from recguide_core.records import MAX_BLOCK

_FINE = 64
"""Tokens up to which every count has its own knot; from there on knots are 3 % apart."""
_STEP = 1.03
_WIDEST = 4 * MAX_BLOCK
"""Query tokens of one request at most: a block and three branches."""
_REMEMBERED = 4096
"""Sets of token counts whose prices are kept."""
_NEAR, _FAR = 128, 2048
"""KV tokens of a request at which a curve is taken; in between and beyond it is a line."""


class PackedPrices:
    """Memoised view of a cost model, which is linear in KV tokens, for packed forwards.

    Args:
        model: where the prices come from.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._curves: dict[tuple[int, int], _Curve] = {}
        self._lines: dict[tuple[int, int, tuple[float, ...]], list[tuple[float, float]]] = {}

    def ms(
        self,
        kind: int,
        requests: int,
        tokens: npt.NDArray[np.int64] | Sequence[float],
        kv_tokens: int,
    ) -> Milliseconds:
        """Milliseconds of forwards of `requests` requests with `tokens` query tokens, [n].

        Args:
            kind: index into `cost.KINDS`.
            kv_tokens: committed prefix tokens that the forward reads.
        """
        curve = self._known(kind, requests)
        return np.interp(tokens, curve.tokens, curve.fixed + kv_tokens * curve.per_kv)

    def of_few(
        self, kind: int, requests: int, tokens: tuple[float, ...], kv_tokens: int
    ) -> list[float]:
        """`ms` for a handful of token counts that come again, as plain floats."""
        key = (kind, requests, tokens)
        lines = self._lines.get(key)
        if lines is None:
            if len(self._lines) >= _REMEMBERED:
                self._lines.clear()
            lines = self._lines[key] = self.lines(kind, requests, tokens)
        return [fixed + kv_tokens * slope for fixed, slope in lines]

    def lines(self, kind: int, requests: int, tokens: Sequence[float]) -> list[tuple[float, float]]:
        """ms without K/V and per K/V token of forwards with these token counts."""
        curve = self._known(kind, requests)
        fixed, slope = (np.interp(tokens, curve.tokens, y) for y in (curve.fixed, curve.per_kv))
        return list(zip(fixed.tolist(), slope.tolist(), strict=True))

    def _known(self, kind: int, requests: int) -> _Curve:
        curve = self._curves.get((kind, requests))
        if curve is None:
            curve = self._curves[kind, requests] = self._curve(kind, max(requests, 1))
        return curve

    def _curve(self, kind: int, requests: int) -> _Curve:
        last = requests * _WIDEST
        steps = math.ceil(math.log(max(last / _FINE, 1.0), _STEP)) + 1
        coarse = np.rint(_FINE * _STEP ** np.arange(steps + 1))
        knots = np.concatenate([np.arange(1, _FINE + 1), coarse, [requests]])
        tokens = np.unique(knots).astype(np.int64)
        tokens = tokens[tokens >= requests]
        flat = np.full(len(tokens), 0)
        shapes = Shapes(
            kind=flat + kind,
            requests=flat + requests,
            query_tokens=tokens,
            kv_tokens=flat + requests * _NEAR,
            block_size=-(-tokens // requests),
            branches=flat,
        )
        near = self.model.ms(shapes)
        far = self.model.ms(replace(shapes, kv_tokens=flat + requests * _FAR))
        per_kv = (far - near) / (requests * (_FAR - _NEAR))
        return _Curve(tokens, near - per_kv * requests * _NEAR, per_kv)


@dataclass(frozen=True, slots=True)
class _Curve:
    """T over tokens: `fixed` + KV tokens x `per_kv`, float64 [knots]."""

    tokens: npt.NDArray[np.int64]
    fixed: Milliseconds
    per_kv: Milliseconds
