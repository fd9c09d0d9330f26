"""`recguide bench --suite plan`: the largest load that meets a target, and what if."""

from __future__ import annotations

from typing import Any

from recguide_cli import console
from recguide_cli.suites.simulated import settings_of, show


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Search the capacity of every candidate method."""
    from recguide_core.bench.suites.plan import Target, plan_suite

    target = Target(tps=options["target_tps"], tpot_ms=options["target_tpot"])
    report = plan_suite(settings_of(options), target, done=console.note)
    return show(report, options["out"])
