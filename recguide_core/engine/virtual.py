"""A clock that charges every step from a cost model instead of waiting for a device.

The real engine on it makes real tokens and real decisions; only time is computed. No torch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recguide_core.policy.cost import CostModel, Shapes
from recguide_core.policy.cost_fit import FittedCost
from recguide_core.policy.host import NO_HOST, HostTime
from recguide_core.records import StepShape

_REMEMBERED = 1 << 17
_FAR = 1 << 20


class VirtualClock:
    """Virtual seconds since its start; see `Clock`.

    Args:
        model: price of a forward; `host`: time beside it.
        name: how the run is labelled, e.g. `b200/nld-8b`.
        context: committed tokens to charge for each request beyond those it really has, so that
            short test prompts cost like the contexts that the table was measured at.
        drafter: price of a small drafter's forward; without it such a forward costs what a draft
            of the model itself would, which is an upper bound.
        padded: charge every row as wide as the widest of its forward, as engines without ragged
            batches compute it.

    Attributes:
        origins: steps by how their price is known (measured, interpolated, modelled).
    """

    def __init__(
        self,
        model: CostModel,
        host: HostTime = NO_HOST,
        name: str = "virtual",
        *,
        context: int = 0,
        drafter: CostModel | None = None,
        padded: bool = False,
    ) -> None:
        self.model = model
        self.drafter = drafter
        self.padded = padded
        self.host = host
        self.name = name
        self.context = context
        self.origins: dict[str, int] = {}
        self._now = 0.0
        self._prices: dict[tuple[str, int, int, int], tuple[float, float, str]] = {}

    def now(self) -> float:
        return self._now

    def wait_until(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def charge(self, shape: StepShape) -> None:
        self.charge_many(shape, 1)

    def charge_many(self, shape: StepShape, steps: int, kv_growth: int = 0) -> None:
        """Charge `steps` steps of one shape whose kv_tokens grow by `kv_growth` each step."""
        self._now += self.seconds(shape, steps, kv_growth)
        origin = self._price(shape)[2]
        self.origins[origin] = self.origins.get(origin, 0) + steps

    def seconds(self, shape: StepShape, steps: int = 1, kv_growth: int = 0) -> float:
        """What `charge_many` would add."""
        fixed, per_kv, _ = self._price(shape)
        kv = shape.kv_tokens + self.context * shape.requests + 0.5 * (steps - 1) * kv_growth
        return 1e-3 * steps * (fixed + per_kv * kv)

    def _price(self, shape: StepShape) -> tuple[float, float, str]:
        """ms without K/V, ms per K/V token, and the label of the forward's price."""
        if self.padded and shape.block_size:
            widest = (shape.requests + shape.branches) * shape.block_size
            shape = replace(shape, query_tokens=max(widest, shape.query_tokens))
        key = (shape.kind, shape.requests, shape.query_tokens, shape.branches)
        found = self._prices.get(key)
        if found is None:
            if len(self._prices) > _REMEMBERED:
                self._prices.clear()
            found = self._prices[key] = self._look_up(shape)
        return found

    def _look_up(self, shape: StepShape) -> tuple[float, float, str]:
        model = self.model
        # A drafter's forward is part of a step whose host time the target's forward carries.
        beside = float(self.host.ms(shape.requests))
        if shape.kind == "drafter":
            model, beside = self.drafter or model, 0.0
            shape = replace(shape, kind="draft")
        shapes = Shapes.of([shape])
        if isinstance(model, FittedCost):
            fixed, per_kv = model.terms(shapes)
            return float(fixed[0]) + beside, float(per_kv[0]), model.origin(shapes)[0]
        none, far = (Shapes.of([replace(shape, kv_tokens=kv)]) for kv in (0, _FAR))
        base = float(model.ms(none)[0])
        slope = (float(model.ms(far)[0]) - base) / _FAR
        return base + beside, max(slope, 0.0), "interpolated"


class ScaledCost:
    """A cost model times a factor: what-if studies (`0.5` = a device twice as fast)."""

    def __init__(self, model: CostModel, factor: float) -> None:
        self.model = model
        self.factor = factor

    def ms(self, shapes: Shapes) -> np.ndarray:
        return self.factor * self.model.ms(shapes)
