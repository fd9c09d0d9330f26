"""The record of a tuning run, and the provenance that its policy file carries. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recguide_core.tables import Table
from recguide_core.tuning.offline import Offline
from recguide_core.tuning.settings import TuneSettings


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tables that a policy is tuned from, with the file names that it will know them by.

    Attributes:
        names: kind -> name of the table as `guidance.find` takes it.
        clock: name of the cost table when it belongs to another device, else "".
    """

    trace: Table
    value: Table
    branch: Table
    cost: Table
    names: Mapping[str, str]
    clock: str = ""


def make_report(
    settings: TuneSettings,
    inputs: Inputs,
    offline: Offline,
    measured: list[dict[str, Any]],
    history: list[dict[str, Any]],
    held_out: bool,
    chosen: dict[str, Any],
) -> dict[str, Any]:
    return {
        "schema": "recguide.tune/1",
        "model": settings.model,
        "clock": inputs.clock or inputs.cost.provenance["device"],
        "settings": chosen,
        "low_load": [
            {
                "block": t.block,
                "delta": t.delta,
                "corrections": t.branches[0],
                "continuation": t.branches[1],
                "accepted": t.accepted,
                "reuse": t.reuse,
                "rows": t.rows,
                "tokens_per_ms": rate,
            }
            for t, rate in zip(offline.trials, offline.rates, strict=True)
        ],
        "offline": [
            {
                "concurrency": c,
                "rho": offline.rho[c],
                "gain": offline.gain[c][0],
                "low": offline.gain[c][1],
                "high": offline.gain[c][2],
                "shares": dict(
                    zip(map(str, offline.menu.tolist()), offline.shares[c], strict=True)
                ),
            }
            for c in sorted(offline.rho)
        ],
        "on_policy": history,
        "measured": measured,
        "held_out": held_out,
    }


def make_provenance(
    settings: TuneSettings,
    inputs: Inputs,
    model_hash: str,
    blocks: list[int],
    prompts: list[str],
    report: dict[str, Any],
) -> dict[str, Any]:
    return {
        "model": settings.model,
        "model_hash": model_hash,
        "device": inputs.cost.provenance["device"],
        "engine": settings.engine,
        "clock": inputs.clock,
        "cost_hash": inputs.cost.digest,
        "value_hash": inputs.value.digest,
        "branch_hash": inputs.branch.digest,
        "trace_hash": inputs.trace.digest,
        "cost_model_hash": inputs.cost.provenance["model_hash"],
        "tables": dict(inputs.names),
        "value_menu": blocks,
        "data": inputs.trace.provenance["data"],
        "prompts": prompts,
        "expected": {
            str(m["concurrency"]): {
                "over_best": m["over_best"]["gain"],
                "over_recipe": m["over_recipe"]["gain"],
                "best": m["best"],
            }
            for m in report["measured"]
        },
        "held_out": report["held_out"],
    }
