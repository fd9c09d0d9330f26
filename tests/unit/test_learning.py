"""A policy tuned on other traffic than it meets: with learning it serves like one tuned for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recguide_core.engine.guidance import Guidance
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.policy.value import ValueTable
from recguide_core.simulator.run import planner_of, simulate_cell
from recguide_core.simulator.settings import SimCell, SimSettings

LOAD = 32
CELL = SimCell("recguide", None, LOAD, "ragged")
SETTINGS = SimSettings(gpu="b200", model="nld-8b")


REQUESTS = 16 * LOAD
"""Learning takes the first rounds, which are a small part of these."""


def speed(guidance: Guidance, **how: bool) -> float:
    """Tokens/s in steady state on the virtual clock."""
    planner = RecGuidePlanner(guidance, **how)
    return simulate_cell(SETTINGS, CELL, planner, REQUESTS).timeline.steady_tps


@pytest.fixture(scope="module")
def tuned() -> Guidance:
    return planner_of(SETTINGS, CELL).guidance


@pytest.fixture(scope="module")
def usual(tuned: Guidance) -> float:
    return speed(tuned, learning=False)


def times(at: dict[int, float], factor: float) -> dict[int, float]:
    return {load: factor * x for load, x in at.items()}


def boastful(table: ValueTable) -> ValueTable:
    """The same table, where B = 32 always passes."""
    strata = []
    for stratum in table.strata:
        survival = stratum.survival.copy()
        survival[:, -1] = 1.0
        strata.append(replace(stratum, survival=survival))
    return ValueTable(table.menu.tolist(), strata)


def test_where_the_tables_are_right_learning_costs_little(tuned, usual) -> None:
    assert speed(tuned) > 0.95 * usual


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_rho_of_faster_or_slower_texts_is_mended(tuned, usual, factor) -> None:
    wrong = replace(tuned, rho=times(tuned.rho, factor), rate=times(tuned.rate, factor))
    stays, learns = speed(wrong, learning=False), speed(wrong)
    assert stays < 0.95 * usual
    assert learns > 0.95 * usual


def test_a_block_that_breaks_its_promise_is_believed_less(tuned, usual) -> None:
    wrong = replace(tuned, value=boastful(tuned.value))
    planner = RecGuidePlanner(wrong)
    learns = simulate_cell(SETTINGS, CELL, planner, REQUESTS).timeline.steady_tps
    assert planner.scale[-1] < 0.7
    assert (np.abs(planner.scale[:3] - 1) < 0.2).all()
    stays = speed(wrong, learning=False)
    assert stays < 0.9 * usual
    assert learns > 0.92 * usual


def test_without_learning_decisions_do_not_depend_on_the_past(tuned) -> None:
    assert speed(tuned, learning=False) == speed(tuned, learning=False)
    planner = RecGuidePlanner(tuned, learning=False)
    first = simulate_cell(SETTINGS, CELL, planner, 64).timeline.steady_tps
    assert simulate_cell(SETTINGS, CELL, planner, 64).timeline.steady_tps == first
    assert planner.scale.tolist() == [1.0] * len(planner.menu)
