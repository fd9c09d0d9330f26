"""Engines of the bundled model with and without the device-resident loop, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from recguide_core.engine.engine import Engine
from recguide_core.engine.law_guidance import Law, law_guidance
from recguide_core.engine.planners import ArPlanner, LinearPlanner
from recguide_core.engine.planners_adaptive import AdaptivePlanner
from recguide_core.engine.planners_overlap import OverlapPlanner, TidarPlanner
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.kernels.check.acceptance import survival
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.cost_fit import roofline
from recguide_core.policy.devices import gpu, model_size
from recguide_core.records import Request

TEXTS = (
    "12 + 30 = ",
    "List three fruits.",
    "Say hello.",
    "What is the capital of France?",
    "Count from 1 to 9.",
    "Name a colour.",
    "2 * 8 = ",
    "Write a short poem.",
)
EVERYWHERE = BranchRule(delta=1.1)
H200 = roofline(gpu("h200"), model_size("nld-8b"))


def guidance():
    return law_guidance(Law(survival(), 0.6), H200, (1, 8), 100)


METHODS = {
    "ar": ArPlanner,
    "linear": lambda: LinearPlanner(8),
    "linear:recipe": lambda: LinearPlanner(None),
    "overlap": lambda: OverlapPlanner(8, EVERYWHERE),
    "tidar": lambda: TidarPlanner(5),
    "adaptive": lambda: AdaptivePlanner(guidance()),
    "recguide": lambda: RecGuidePlanner(guidance()),
}


def engine_for(model, planners, resident: bool, requests: int = 3, **options) -> Engine:
    settings = EngineSettings(
        **{"max_requests": requests, "prefill_chunk": 7, "context": 256, **options},
        resident=resident,
    )
    return Engine(model, planners=planners, settings=settings)


def prompt_of(model, i: int) -> np.ndarray:
    text = model.render([{"role": "user", "content": TEXTS[i % len(TEXTS)]}])
    return np.array(model.tokenizer.encode(text))


def submit(engine, model, i: int, fixed_block: int = 0, **options) -> None:
    options = {"max_tokens": 20, **options}
    engine.submit(Request(str(i), prompt_of(model, i), **options), fixed_block)


def history(events, near=lambda value: value) -> dict[str, list[tuple]]:
    """What every request was told, in order; `near` says how statistics are compared."""
    told: dict[str, list[tuple]] = {}
    for e in events:
        end = None
        if e.finished is not None:
            f = e.finished
            end = (f.finish, f.tokens.tolist(), f.origins.tolist(), f.rounds, f.forwards,
                   f.reused, f.round_tokens)  # fmt: skip
        entropy = None if np.isnan(e.entropy) else near(e.entropy)
        margins = near(e.margins)
        told.setdefault(e.key, []).append(
            (e.tokens, e.origins, e.block, e.accepted, e.source, margins, entropy, e.hit, end)
        )
    return told


def pair(model, planners, **options) -> tuple[Engine, Engine]:
    made = [engine_for(model, [p() for p in planners], on, **options) for on in (False, True)]
    return made[0], made[1]


def same(host: Engine, resident: Engine, drive) -> None:
    want = history(drive(host), lambda value: pytest.approx(value, abs=1e-4))
    got = history(drive(resident))
    assert got.keys() == want.keys()
    for key in want:
        assert len(got[key]) == len(want[key]), key
        for mine, theirs in zip(got[key], want[key], strict=True):
            assert mine == theirs, key
    for engine in (host, resident):
        engine.pool.check_integrity()
        assert engine.pool.free_pages == engine.pool.pages
    assert resident.execution.graphs.report.resident > 0
