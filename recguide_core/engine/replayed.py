"""`recguide` of the device script: its planner over the law and the forwards just measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recguide_core.engine.device_policy import HostPlan
from recguide_core.engine.law_guidance import Law, law_guidance
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.kernels.check.acceptance import survival
from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.parts import HIT_RATE
from recguide_core.policy.cost import CostModel, InterpolatedCost
from recguide_core.policy.cost_fit import roofline
from recguide_core.policy.devices import gpu, model_size

_COLUMNS = ("kind", "requests", "query_tokens", "kv_tokens", "mean_ms")
_TIMED = {"ar", "draft", "verify", "fused"}
STAND_IN = ("h200", "nld-8b")
"""Whose modelled costs serve where no forward was timed (the dry run, or the part alone)."""


def replayed_policy(bench: Bench, requests: int, context: int) -> HostPlan:
    """Planner of `requests` requests at that load."""
    law = Law(survival(), HIT_RATE)
    guidance = law_guidance(law, costs(bench), (requests,), context)
    if bench.tiny:
        # The interpreter takes seconds for a block of 32 with its branches.
        guidance = replace(guidance, menu=(1, 4))
    return HostPlan(RecGuidePlanner(guidance, learning=False), requests, requests)


def costs(bench: Bench) -> CostModel:
    """The forwards that this check has timed; a roofline until each kind and two loads are in."""
    rows = bench.cost
    kinds, loads = {r["kind"] for r in rows}, {r["requests"] for r in rows}
    if bench.tiny or not kinds >= _TIMED or len(loads) < 2:
        return roofline(gpu(STAND_IN[0]), model_size(STAND_IN[1]))
    return InterpolatedCost({name: np.array([r[name] for r in rows]) for name in _COLUMNS})
