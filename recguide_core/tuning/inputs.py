"""The tables that a tuning run reads, wherever they lie. No torch."""

from __future__ import annotations

from pathlib import Path

from recguide_core.calibration.settings import TABLES, stem
from recguide_core.errors import UsageError
from recguide_core.inventory import place_of
from recguide_core.tables import read_table
from recguide_core.tables.shipped import SUFFIX
from recguide_core.tuning.guidance import find
from recguide_core.tuning.report import Inputs
from recguide_core.tuning.settings import TuneSettings


def read_inputs(
    settings: TuneSettings,
    *,
    folder: Path | None = None,
    trace: Path | None = None,
    cost: Path | None = None,
    clock: str | None = None,
) -> Inputs:
    """Trace, value, branch and cost table.

    Args:
        folder: where tables lie, `runs/tables` by default, then the shipped ones.
        trace: a trace table; value and branch table lie beside it under the same name.
        cost: a cost table; clock: name of another device's cost table, e.g. `b200/nld-8b`.

    Raises:
        DataError: a table is missing or malformed.
        UsageError: both `cost` and `clock`.
    """
    if cost is not None and clock is not None:
        raise UsageError("Both --cost and --clock are given.", "Name one cost table.")
    own = _own(settings)
    names = {"value": own, "branch": own, "cost": own}
    places = folder or TABLES
    if trace is not None:
        own, places = trace.name.removesuffix(SUFFIX["trace"]), trace.parent
        names.update(value=own, branch=own)
    if clock is not None:
        names["cost"] = clock.replace("/", "-")
    if cost is not None:
        names["cost"] = cost.name.removesuffix(SUFFIX["cost"])
    return Inputs(
        trace=read_table(trace or find(own, "trace", places), "trace"),
        value=read_table(find(own, "value", places), "value"),
        branch=read_table(find(own, "branch", places), "branch"),
        cost=read_table(cost or find(names["cost"], "cost", folder), "cost"),
        names=names,
        clock=clock or "",
    )


def _own(settings: TuneSettings) -> str:
    return stem(settings.model, place_of(settings.device), settings.engine)


def default_policy_path(settings: TuneSettings, inputs: Inputs, folder: Path | None) -> Path:
    """Where the policy goes unless told otherwise: beside the trace, named after the cost table."""
    name = inputs.names["cost"] if inputs.clock else _own(settings)
    return _beside(inputs, folder) / f"{name}{SUFFIX['policy']}"


def recording_path(settings: TuneSettings, inputs: Inputs, folder: Path | None) -> Path:
    """Where recordings are kept from one tuning run to the next."""
    name = f"{_own(settings)}.recording.npz"
    return _beside(inputs, folder) / name


def _beside(inputs: Inputs, folder: Path | None) -> Path:
    if folder is not None:
        return folder
    return inputs.trace.path.parent if inputs.trace.path else TABLES
