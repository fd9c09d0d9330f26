"""From a cost table to a cost model, and whether it reaches a load. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recguide_core.errors import DataError
from recguide_core.policy.cost import CostModel, InterpolatedCost
from recguide_core.policy.cost_fit import FittedCost
from recguide_core.policy.devices import GPUS, MODELS
from recguide_core.tables import Table


def cost_model(table: Table) -> CostModel:
    """The physical law where device and model are known ones, else interpolation."""
    device, model = table.provenance["device"], table.provenance["model"]
    if device in GPUS and model in MODELS:
        return FittedCost.fit(table.columns, GPUS[device], MODELS[model])
    return InterpolatedCost(table.columns)


def check_loads(table: Table, loads: Sequence[int]) -> None:
    """Refuse concurrencies beyond what was timed.

    Raises:
        DataError: a load above the largest of the table.
    """
    most = int(np.max(table.columns["requests"]))
    beyond = [load for load in loads if load > most]
    if beyond:
        raise DataError(
            f"Concurrency {beyond[0]} is outside the cost table, whose forwards carry at most "
            f"{most} requests.",
            f"Profile it: recguide profile --requests {','.join(map(str, sorted({1, *loads})))}",
        )
