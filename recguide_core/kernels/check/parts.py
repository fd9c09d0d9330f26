"""The parts of a device check, most important first, and the report that they make."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from recguide_core.errors import UsageError, nearest
from recguide_core.kernels.check import correctness, costs, roundtrip, speed
from recguide_core.kernels.check.acceptance import Script, mean_accepted
from recguide_core.kernels.check.bench import Bench, EnginePart, Policy
from recguide_core.kernels.check.models import RANK, TINY_RANK, config_for, random_transformer
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.planned_rounds import Decide
from recguide_core.kernels.rounds import RoundSettings
from recguide_core.model.transformer import Transformer

SCHEMA = "recguide.device_check/1"
HIT_RATE = 0.6


@cache
def _transformer(tiny: bool) -> Transformer:
    device = torch.device("cpu" if tiny else "cuda")
    rank = TINY_RANK if tiny else RANK
    return random_transformer(config_for(tiny), device, torch.bfloat16, rank)


def _replays(bench: Bench) -> None:
    """Methods with the acceptance law and h = .6 at C = 1, 8, 32."""
    methods = [
        ("linear", RoundSettings(RoundRule(), 16)),
        ("overlap", RoundSettings(roundtrip.OVERLAP, 16)),
        ("ar", RoundSettings(RoundRule(), 1)),
        ("linear", RoundSettings(RoundRule(), 32)),
        ("linear", RoundSettings(RoundRule(), 8)),
        ("overlap", RoundSettings(roundtrip.OVERLAP, 32)),
        ("tidar", RoundSettings(RoundRule(tidar=True), 16)),
    ]
    context = 800
    concurrency: tuple[int, ...] = (1, 8, 32)
    if bench.tiny:
        methods, context, concurrency = [("overlap", RoundSettings(roundtrip.OVERLAP, 3))], 20, (2,)
    for C in concurrency:
        planned: list[tuple[str, RoundSettings | Decide]] = [*methods]
        if bench.policy is not None:
            planned.insert(0, ("recguide", bench.policy(bench, C, context)))
        for name, method in planned:
            if bench.spent:
                return
            script = Script.drawn(HIT_RATE, bench.device)
            roundtrip.replay(bench, _transformer(bench.tiny), name, method, C, context, script)
    law = {B: mean_accepted(B) for B in (8, 16, 32)}
    bench.note("replay", what="acceptance law", mean_accepted=law, hit_rate=HIT_RATE)


def _engine(bench: Bench) -> None:
    """The room that joins policy and kernels brings its own check."""
    if bench.engine is None:
        bench.note("engine", skipped="no engine was handed over")
        return
    bench.engine(bench, _transformer(bench.tiny))


def _flashinfer(bench: Bench) -> None:
    """FlashInfer beside ours is a second opinion; it is not required to be there."""
    import importlib.util

    found = importlib.util.find_spec("flashinfer") is not None
    if bench.tiny or not found:
        why = "dry run on CPU" if bench.tiny else "FlashInfer is not installed"
        bench.note("flashinfer", skipped=why)
        return
    from recguide_core.kernels.check.second_opinion import compare

    compare(bench)


PARTS: dict[str, Callable[[Bench], None]] = {
    "attention": correctness.attention,
    "readout": correctness.readout,
    "fused": correctness.fused_ops,
    "rounds": lambda bench: roundtrip.rounds(bench, _transformer(bench.tiny)),
    "engine": _engine,
    "cost": lambda bench: costs.cost(bench, _transformer(bench.tiny)),
    "speed": speed.speed,
    "graphs": lambda bench: speed.graphs(bench, _transformer(bench.tiny)),
    "replay": _replays,
    "flashinfer": _flashinfer,
}
SHARE = {"cost": 0.55, "speed": 0.75, "graphs": 0.78, "replay": 0.97}
"""Share of the budget by whose end a part stops adding work."""


def run(
    only: str | None,
    budget_s: float,
    tiny: bool,
    log: Callable[[dict[str, Any]], None],
    policy: Policy | None = None,
    engine: EnginePart | None = None,
) -> dict[str, Any]:
    """Run the parts and return the report.

    A part that raises is a failed record; the parts behind it still run.

    Args:
        policy: makes the planner of the replayed `recguide`; None leaves that method out.
        engine: checks the engine's loop over resident rounds; None leaves it out.

    Raises:
        UsageError: no part of that name, or no CUDA device.
    """
    if only is not None and only not in PARTS:
        raise UsageError(f"No part named '{only}'.", nearest(only, PARTS))
    if not tiny and not torch.cuda.is_available():
        raise UsageError("There is no CUDA device here.", "Use --tiny for the dry run on CPU.")
    bench = Bench(tiny, budget_s, log, policy, engine)
    for name in [only] if only else PARTS:
        bench.budget_s = budget_s * (1.0 if only else SHARE.get(name, 1.0))
        if bench.spent:
            bench.note(name, skipped="the budget is spent")
            continue
        try:
            PARTS[name](bench)
        except Exception as error:
            bench.note(name, ok=False, error=f"{type(error).__name__}: {error}")
        if not tiny:
            torch.cuda.empty_cache()
    return report(bench)


def report(bench: Bench) -> dict[str, Any]:
    """JSON of a check; `recguide profile --import` takes `cost` and `provenance`."""
    import triton

    config = config_for(bench.tiny)
    device = "cpu (dry run)" if bench.tiny else torch.cuda.get_device_name(0)
    provenance = {
        "model": "nld-8b" if not bench.tiny else "nld-8b miniature",
        "model_hash": f"random-{config.digest()}",
        "device": device,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "source": "scripts/device_check.py",
        "dtype": "bfloat16",
        "attention": "triton",
        "graph": "graph" if not bench.tiny else "eager",
        "seed": "0",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
    }
    return {
        "schema": SCHEMA,
        "dry_run": bench.tiny,
        "seconds": round(bench.elapsed, 1),
        "failures": bench.failures,
        "provenance": provenance,
        "cost": bench.cost,
        "records": bench.records,
    }
