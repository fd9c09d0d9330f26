"""From an engine's back end to its device-resident loop."""

from __future__ import annotations

from recguide_core.engine.backend import Execution
from recguide_core.engine.core import EngineCore
from recguide_core.engine.resident import ResidentLoop
from recguide_core.kernels import launch
from recguide_core.kernels.resident_probe import self_test


def resident_loop(core: EngineCore, execution: Execution) -> ResidentLoop | None:
    """The loop of an engine where its back end has one, self-tested; else its report says why."""
    if execution.graphs is None:
        return None
    report, make = execution.graphs.report, execution.resident
    if make is None:
        report.not_resident = "switched off" if not execution.faults else execution.faults[0]
    elif core.executor is not execution.executor:
        report.not_resident = "a second model drafts"
    elif core.settings.slots > launch.MAX_REQUESTS:
        report.not_resident = f"more than {launch.MAX_REQUESTS} requests"
    else:
        rounds = make(core.settings.slots, core.settings.entropy_positions)
        faults = self_test(rounds)
        report.not_resident = "; ".join(faults)
        return None if faults else ResidentLoop(core, rounds, report)
    return None
