"""Tables and rho for a simulated model, made the way calibrate and tune make them.

V_B and the hit rates come from shadow rounds on texts of their own seed; rho_C starts at
Dinkelbach's value for those states and is then the rate that a simulated run with it achieves,
twice: a policy changes its own history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recguide_core.acceptance.fit import AcceptanceModel
from recguide_core.engine.guidance import FULL_MENU, Guidance
from recguide_core.policy.branch_table import BranchTable, fit_branches
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.cost import CostModel, round_ms
from recguide_core.policy.tune import dinkelbach
from recguide_core.policy.value import ValueTable
from recguide_core.policy.value_fit import ShadowRounds, fit
from recguide_core.simulator.states import branch_trials, explore
from recguide_core.simulator.texts import draw_texts

TEXTS, TOKENS = 480, 384
CALIBRATION_SEED = 1_000_003
"""Texts that calibrate never serve as a workload."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was learned of a model, before any cost is known.

    Attributes:
        shadow: the rounds behind the tables.
    """

    shadow: ShadowRounds
    value: ValueTable
    branches: BranchTable
    rule: BranchRule


def calibrate(
    model: AcceptanceModel,
    menu: Sequence[int] = FULL_MENU,
    rule: BranchRule | None = None,
    seed: int = CALIBRATION_SEED,
) -> Calibrated:
    """Fit V_B(s, z) and the hit rates on drawn texts."""
    rule = rule or BranchRule()
    texts = draw_texts(model, TEXTS, TOKENS, seed)
    walk = explore(texts, TOKENS, menu, seed)
    value = fit(walk.shadow, sorted(menu))
    branches = fit_branches(branch_trials(texts, walk, rule), menu, rule.delta)
    return Calibrated(walk.shadow, value, branches, rule)


def first_rho(
    learned: Calibrated, cost: CostModel, loads: Sequence[int], kv: float
) -> dict[int, float]:
    """rho_C of a serial round at T_C(B), by Dinkelbach on the calibration states.

    Args:
        kv: committed tokens of a request, mean.
    """
    known = learned.shadow
    s = known.signal(False)
    values = learned.value.values(s, known.prev_block, known.prev_full)
    weight = known.weights()
    return {
        load: dinkelbach(values, round_ms(cost, load, learned.value.menu, kv), weight)
        for load in loads
    }


def guidance(
    learned: Calibrated,
    cost: CostModel,
    rho: Mapping[int, float],
    rate: Mapping[int, float] | None = None,
    menu: Sequence[int] = FULL_MENU,
) -> Guidance:
    """Guidance of the adaptive methods from what was learned and the prices."""
    return Guidance(
        value=learned.value,
        cost=cost,
        rho=dict(rho),
        rate=dict(rate or {}),
        branches=learned.branches,
        menu=tuple(menu),
        rule=learned.rule,
    )


def with_rho(guide: Guidance, load: int, rho: float) -> Guidance:
    """The same guidance with another rho at one load."""
    return replace(guide, rho={**guide.rho, load: rho})


def rho_of(tps: float, load: int) -> float:
    """The rate that a run achieved as rho: tokens of one request per millisecond."""
    return float(np.float64(tps) / (1000.0 * load))
