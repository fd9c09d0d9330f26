"""`recguide bench --suite paper`: the paper's tables from the simulator, beside the paper's."""

from __future__ import annotations

from typing import Any

from recguide_cli import console
from recguide_cli.suites.simulated import given, show


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Run the suite for NLD-8B and 14B, or the one named by --model."""
    from recguide_core.bench.suites.paper import REQUESTS, TOKENS, paper_suite
    from recguide_core.errors import UsageError
    from recguide_core.simulator.settings import MODELS

    models: tuple[str, ...] = MODELS
    if given(options, "model"):
        models = tuple(console.names(options["model"], "--model"))
        strange = [name for name in models if name not in MODELS]
        if strange:
            raise UsageError(
                f"The paper has no results for '{strange[0]}'.", f"Choose {' or '.join(MODELS)}."
            )
    report = paper_suite(
        models,
        tokens=options["max_tokens"] if given(options, "max_tokens") else TOKENS,
        requests=options["requests"] or REQUESTS,
        done=console.note,
    )
    return show(report, options["out"])
