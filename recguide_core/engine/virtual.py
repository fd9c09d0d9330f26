"""A clock that charges every step from a cost model instead of waiting for a device.

The real engine on it makes real tokens and real decisions; only time is computed. No torch.
"""

from __future__ import annotations

import numpy as np

from recguide_core.policy.cost import CostModel, Shapes
from recguide_core.policy.cost_fit import FittedCost
from recguide_core.policy.host import NO_HOST, HostTime
from recguide_core.records import StepShape

_REMEMBERED = 1 << 17


class VirtualClock:
    """Virtual seconds since its start; see `Clock`.

    Args:
        model: price of a forward; `host`: time beside it.
        name: how the run is labelled, e.g. `b200/nld-8b`.
        context: committed tokens to charge for each request beyond those it really has, so that
            short test prompts cost like the contexts that the table was measured at.

    Attributes:
        origins: steps by how their price is known (measured, interpolated, modelled).
    """

    def __init__(
        self, model: CostModel, host: HostTime = NO_HOST, name: str = "virtual", context: int = 0
    ) -> None:
        self.model = model
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
        key = (shape.kind, shape.requests, shape.query_tokens, shape.branches)
        found = self._prices.get(key)
        if found is None:
            if len(self._prices) > _REMEMBERED:
                self._prices.clear()
            found = self._prices[key] = self._look_up(shape)
        return found

    def _look_up(self, shape: StepShape) -> tuple[float, float, str]:
        shapes = Shapes.of([shape])
        beside = float(self.host.ms(shape.requests))
        if isinstance(self.model, FittedCost):
            fixed, per_kv = self.model.terms(shapes)
            return float(fixed[0]) + beside, float(per_kv[0]), self.model.origin(shapes)[0]
        none = Shapes.of([_with_kv(shape, 0)])
        far = Shapes.of([_with_kv(shape, 1 << 20)])
        base = float(self.model.ms(none)[0])
        slope = (float(self.model.ms(far)[0]) - base) / (1 << 20)
        return base + beside, max(slope, 0.0), "interpolated"


def _with_kv(shape: StepShape, kv: int) -> StepShape:
    return StepShape(
        shape.kind, shape.requests, shape.query_tokens, kv, shape.block_size, shape.branches
    )


class ScaledCost:
    """A cost model times a factor: what-if studies (`0.5` = a device twice as fast)."""

    def __init__(self, model: CostModel, factor: float) -> None:
        self.model = model
        self.factor = factor

    def ms(self, shapes: Shapes) -> np.ndarray:
        return self.factor * self.model.ms(shapes)
