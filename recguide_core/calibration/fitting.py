"""From a trace table to the value and branch tables, with held-out quality. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recguide_core.calibration import quality
from recguide_core.calibration.settings import DELTAS, FitSettings
from recguide_core.calibration.traces import States, branch_trials, states_of
from recguide_core.errors import DataError
from recguide_core.policy.branch_table import fit_branches
from recguide_core.policy.signals import decision_limit
from recguide_core.policy.value import ValueTable
from recguide_core.policy.value_fit import fit
from recguide_core.tables import Table, make_table, provenance

KEPT = ("model", "model_hash", "device", "data", "seed", "engine", "sglang")


@dataclass(frozen=True, slots=True)
class Fitted:
    """Tables fitted to a trace, and what is known about them.

    Attributes:
        value, branch: tables ready to be written; `lookup` is the value table in use.
        states: the states behind them; report: the record that `--json` prints.
    """

    value: Table
    branch: Table
    lookup: ValueTable
    states: States
    report: dict[str, Any]


def fit_trace(trace: Table, settings: FitSettings) -> Fitted:
    """Fit the tables and judge them out of fold.

    Raises:
        DataError: the trace has too little to fit.
    """
    menu = sorted(np.unique(np.asarray(trace.columns["block_size"])).tolist())
    positions = decision_limit(
        settings.positions if settings.positions == "all" else int(settings.positions), menu
    )
    states = states_of(trace.columns, positions)
    try:
        lookup = fit(states.rounds, menu, settings.bins)
    except ValueError as error:
        raise DataError(f"The trace cannot be fitted: {error}.", "Collect more rounds.") from error
    about = {key: trace.provenance[key] for key in KEPT if key in trace.provenance}
    counts = {
        "requests": str(len(np.unique(states.rounds.request))),
        "rounds": str(len(states)),
        "trace_hash": trace.digest,
    }
    made = provenance(source="recguide calibrate", **{**about, **counts})
    value = make_table(
        "value",
        lookup.to_columns(),
        {
            **made,
            "folds": str(settings.folds),
            "recipe": f"bins {settings.bins}, entropy positions {settings.positions}",
            "bins": str(settings.bins),
            "entropy_positions": settings.positions,
        },
    )
    branch = make_table("branch", _branch_columns(trace.columns, states, menu), made)
    return Fitted(value, branch, lookup, states, _report(trace, states, lookup, settings, menu))


def _branch_columns(
    columns: Mapping[str, Any], states: States, menu: list[int]
) -> dict[str, list[Any]]:
    parts = [
        fit_branches(branch_trials(columns, states, delta), menu, delta).to_columns()
        for delta in DELTAS
    ]
    return {name: [item for part in parts for item in part[name]] for name in parts[0]}


def _report(
    trace: Table, states: States, lookup: ValueTable, settings: FitSettings, menu: list[int]
) -> dict[str, Any]:
    rounds = states.rounds
    fold = quality.folds_of(states.requests, settings.folds)[rounds.request]
    values, survival = quality.out_of_fold(rounds, fold, menu, settings.bins)
    weight = rounds.weights()
    reliable = quality.reliability(survival, rounds.accepted, menu)
    return {
        "schema": "recguide.calibrate/1",
        "model": trace.provenance["model"],
        "model_hash": trace.provenance["model_hash"],
        "data": states.datasets,
        "requests": len(np.unique(rounds.request)),
        "rounds": len(states),
        "menu": menu,
        "accepted": dict(zip(menu, (weight @ rounds.accepted).round(4).tolist(), strict=True)),
        "full": {
            block: round(float(weight @ (rounds.accepted[:, j] == block)), 4)
            for j, block in enumerate(menu)
        },
        "value": [
            {"history": name, "rounds": count, "uncertain": low, "certain": high}
            for name, count, low, high in quality.strata_rows(lookup)
        ],
        "worth": [
            {"small": w.small, "large": w.large, "rate": w.rate, "auroc": w.auroc}
            for w in quality.worth(values, rounds.accepted, menu)
        ],
        "reliability": {
            "predicted": reliable.predicted.tolist(),
            "observed": reliable.observed.tolist(),
            "count": reliable.count.tolist(),
            "error": reliable.error,
        },
        "persistence": _correlation(values[:, -1], rounds.accepted[:, -1]),
    }


def _correlation(predicted: np.ndarray, accepted: np.ndarray) -> float | None:
    """Held-out correlation of V with the accepted length of the largest block."""
    if len(predicted) < 3 or predicted.std() == 0 or accepted.std() == 0:
        return None
    return float(np.corrcoef(predicted, accepted)[0, 1])
