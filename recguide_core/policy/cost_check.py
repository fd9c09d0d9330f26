"""How far a fitted cost is off where it was not fitted, beside plain interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.policy.cost import KINDS, CostModel, InterpolatedCost, Shapes
from recguide_core.policy.cost_fit import FittedCost
from recguide_core.policy.devices import Gpu, ModelSize

MEDIAN_BOUND, WORST_BOUND = 0.06, 0.15


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Relative errors on the rows left out: of the fit and of plain interpolation."""

    name: str
    rows: int
    median: float
    worst: float
    plain_median: float
    plain_worst: float

    @property
    def within(self) -> bool:
        """Median at most 6 %, worst at most 15 %."""
        return self.median <= MEDIAN_BOUND and self.worst <= WORST_BOUND


def held_out(columns: Mapping[str, npt.ArrayLike], gpu: Gpu, size: ModelSize) -> list[HeldOut]:
    """Leave out all of B = 16, then C = 40..60; fit on the rest; compare.

    Args:
        columns: a cost table with draft and verify rows at B = 8, 16, 32.
    """
    block = np.asarray(columns["block_size"])
    requests = np.asarray(columns["requests"])
    cuts = {"B = 16": block == 16, "C = 40..60": (requests >= 40) & (requests <= 60)}
    return [_compare(name, columns, cut, gpu, size) for name, cut in cuts.items()]


def _compare(
    name: str,
    columns: Mapping[str, npt.ArrayLike],
    cut: npt.NDArray[np.bool_],
    gpu: Gpu,
    size: ModelSize,
) -> HeldOut:
    rest = {key: np.asarray(values)[~cut] for key, values in columns.items()}
    out = {key: np.asarray(values)[cut] for key, values in columns.items()}
    fitted = _errors(FittedCost.fit(rest, gpu, size), out)
    plain = _errors(InterpolatedCost(rest), out)
    return HeldOut(
        name,
        int(cut.sum()),
        float(np.median(fitted)),
        float(fitted.max()),
        float(np.median(plain)),
        float(plain.max()),
    )


def _errors(
    model: CostModel, out: Mapping[str, npt.NDArray[np.generic]]
) -> npt.NDArray[np.float64]:
    shapes = shapes_of(out)
    return np.abs(model.ms(shapes) / np.asarray(out["mean_ms"], np.float64) - 1.0)


def shapes_of(columns: Mapping[str, npt.ArrayLike]) -> Shapes:
    """The shapes of a cost table's rows."""
    names = np.asarray(columns["kind"])
    rest = ("requests", "query_tokens", "kv_tokens", "block_size", "branches")
    return Shapes(
        np.array([KINDS.index(str(k)) for k in names], np.int64),
        *(np.asarray(columns[name], np.int64) for name in rest),
    )
