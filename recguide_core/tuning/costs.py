"""From a cost table to the price of a step, and whether it reaches a load. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recguide_core.errors import DataError
from recguide_core.policy.cost import CostModel, InterpolatedCost
from recguide_core.policy.cost_fit import FittedCost
from recguide_core.policy.devices import GPUS, MODELS
from recguide_core.policy.host import NO_HOST, HostedCost, HostTime
from recguide_core.tables import Table


def cost_model(table: Table) -> CostModel:
    """The physical law where device and model are known ones, else interpolation; with the host's
    time where the table names it.

    Raises:
        DataError: the table names it badly.
    """
    device, model = table.provenance["device"], table.provenance["model"]
    cost: CostModel
    if device in GPUS and model in MODELS:
        cost = FittedCost.fit(table.columns, GPUS[device], MODELS[model])
    else:
        cost = InterpolatedCost(table.columns)
    host = host_time(table)
    return cost if host == NO_HOST else HostedCost(cost, host)


def host_time(table: Table) -> HostTime:
    """What the host adds to a step (`profiling.host`), 0 where the table does not say.

    Raises:
        DataError: it says it in something else than milliseconds.
    """
    try:
        step, request = (
            float(table.provenance.get(name, "0")) for name in ("host_step_ms", "host_request_ms")
        )
        good = 0.0 <= step < np.inf and 0.0 <= request < np.inf
    except ValueError:
        good = False
    if not good:
        raise DataError(
            "The cost table's host_step_ms and host_request_ms are no milliseconds.",
            "Make it with `recguide profile`.",
        )
    return HostTime(step, request)


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
