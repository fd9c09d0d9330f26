"""Rounds on the device that a planner of the engine decides: lossless, and its own choices."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from resident import drained

from recguide_core.engine.device_policy import HostPlan
from recguide_core.engine.law_guidance import Law, law_guidance
from recguide_core.engine.planners import ArPlanner, LinearPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.kernels.check.acceptance import mean_accepted, survival
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.planned_rounds import PlannedRounds
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.model.registry import load_model
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.cost_fit import roofline
from recguide_core.policy.devices import gpu, model_size

H200 = roofline(gpu("h200"), model_size("nld-8b"))
LAW = Law(survival(), 0.6)


class Watched(HostPlan):
    """Counts what is planned."""

    def __init__(self, planner, slots: int) -> None:
        super().__init__(planner, slots, slots)
        self.blocks: Counter[int] = Counter()
        self.branches = 0

    def __call__(self, state, emitted, plan) -> None:
        super().__call__(state, emitted, plan)
        self.blocks.update(plan.block[plan.act > 0].tolist())
        self.branches += int((plan.kind >= 0).sum())


def decode(model, planner):
    watched = Watched(planner, 3)

    def build(*parts):
        *loop, graphs = parts
        return PlannedRounds(*loop, watched, graphs)

    return *drained(model, build), watched


@pytest.fixture(scope="module")
def model():
    return load_model("nld-tiny")


@pytest.fixture(scope="module")
def reference(model):
    def build(*parts):
        *loop, graphs = parts
        return DeviceRounds(*loop, RoundSettings(RoundRule(), 1), graphs)

    return drained(model, build)[0]


def test_every_planner_gives_the_tokens_of_ar(model, reference) -> None:
    everywhere = BranchRule(delta=2.0)
    free = replace(law_guidance(LAW, H200, (1, 8), 100), rule=everywhere)
    planners = (ArPlanner(), LinearPlanner(8), OverlapPlanner(5, everywhere), RecGuidePlanner(free))
    for planner in planners:
        out, rounds, _, watched = decode(model, planner)
        assert out == reference, planner.name
        if planner.name in ("overlap", "recguide"):
            assert watched.branches
            assert int(rounds.state.reused.sum()) > 0
        if planner.name == "recguide":
            assert len(watched.blocks) > 1


def test_a_planner_and_the_device_rule_run_the_same_steps(model) -> None:
    """Overlap decided on the host and by the kernel: same rounds, same reuse."""

    def build(*parts):
        *loop, graphs = parts
        rule = RoundRule(corrections=2, continuation=True)
        return DeviceRounds(*loop, RoundSettings(rule, 8), graphs)

    _, fixed, steps = drained(model, build)
    _, planned, mine, _ = decode(model, OverlapPlanner(8))
    assert mine == steps
    for name in ("rounds", "reused", "committed"):
        assert getattr(fixed.state, name).tolist() == getattr(planned.state, name).tolist()


def test_the_law_is_what_the_tables_say() -> None:
    guidance = law_guidance(LAW, H200, (1, 32), 800)
    s, z = np.array([np.nan]), (np.array([16]), np.array([True]))
    for lagged in (False, True):
        values = guidance.value.values(s, *z, lagged=lagged)[0]
        assert values[1:] == pytest.approx([mean_accepted(b) for b in (4, 8, 16, 32)])
    # By a roofline of an H200, overlap pays alone and not beside 31 others.
    assert any(h for h, _ in guidance.overlap[1].values())
    assert guidance.rho[32] < guidance.rho[1]
    first = guidance.branches.chance(*(np.array([v]) for v in (16, 0, 0, 0.1)))
    second = guidance.branches.chance(*(np.array([v]) for v in (16, 0, 1, 0.1)))
    assert (first, second) == (1.0, 0.0)
