"""Priced overlap from a trace, and the choice of prompts for tuning and judging."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "calibration"))
from shadow_rows import columns, request_rows

from recguide_core.calibration.shadow import ShadowPrompt
from recguide_core.calibration.traces import branch_trials, state_weights, states_of
from recguide_core.errors import DataError
from recguide_core.policy.branch_table import fit_branches
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.cost import Milliseconds, Shapes, round_ms
from recguide_core.tuning.offline import low_load_trials, tune_offline
from recguide_core.tuning.overlap import priced_overlap, round_prices
from recguide_core.tuning.run import split_prompts
from recguide_core.tuning.settings import TuneSettings

RUNS = np.random.default_rng(0).integers(0, 9, 40).tolist()
ROWS = columns(
    [line for i in range(12) for line in request_rows(f"p{i}", RUNS[i:] + RUNS[:i], [8] * 40)]
)
STATES = states_of(ROWS)
# The same drafts, but the alternative is wrong in four rounds of five.
DOUBTFUL = {**ROWS, "top2": [t if i % 5 == 0 else [3] * len(t) for i, t in enumerate(ROWS["top2"])]}
RULE = BranchRule()


class PerToken:
    def __init__(self, slope: float) -> None:
        self.slope = slope

    def ms(self, shapes: Shapes) -> Milliseconds:
        return 1.0 + self.slope * shapes.query_tokens.astype(np.float64)


def overlap(slope: float, load: int, rows=ROWS):
    table = fit_branches(branch_trials(rows, STATES, RULE.delta), [1, 4, 8], RULE.delta)
    weight = state_weights(STATES)
    return priced_overlap(rows, STATES, weight, RULE, table, PerToken(slope), load, 0.0)


def test_free_branches_bring_all_reuse_and_dear_ones_none() -> None:
    free = overlap(0.0, 1)
    # In these rows every miss is corrected and every committed full block followed.
    assert free[8].reuse == pytest.approx(1.0)
    # At a price for every token a branch must be right as often as its tokens cost.
    dear = overlap(1.0, 64, DOUBTFUL)
    assert dear[4].reuse < overlap(0.0, 1, DOUBTFUL)[4].reuse
    assert dear[4].rows < overlap(0.0, 1, DOUBTFUL)[4].rows


def test_reuse_makes_a_round_cheaper_and_nothing_else_does() -> None:
    model, menu = PerToken(0.0), np.array([1, 4, 8])
    serial = round_ms(model, 1, menu)
    prices = round_prices(overlap(0.0, 1), serial, menu, model, 1, 0.0)
    assert prices[0] == serial[0]
    assert prices[2] == pytest.approx(serial[2] - 1.0)
    none = {8: replace(overlap(0.0, 1)[8], reuse=0.0, rows=0.0)}
    assert (round_prices(none, serial, menu, model, 1, 0.0) == serial).all()


def test_low_load_search_covers_every_setting_once() -> None:
    trials = low_load_trials(ROWS, STATES, state_weights(STATES))
    keys = [(t.block, t.delta, t.branches) for t in trials]
    assert len(set(keys)) == len(keys)
    assert {t.block for t in trials} == {4, 8}
    assert {t.branches for t in trials} >= {(0, False), (1, False), (2, False), (2, True)}


def test_rho_falls_with_the_load_where_time_grows_with_it() -> None:
    found = tune_offline(ROWS, STATES, PerToken(0.05), (1, 4, 8), (1, 8, 64), folds=3, bins=4)
    rho = [found.rho[c] for c in (1, 8, 64)]
    assert rho == sorted(rho, reverse=True)
    assert all(sum(shares) == pytest.approx(1.0) for shares in found.shares.values())
    rates = [t.rate(PerToken(0.05), 1, found.kv) for t in found.trials]
    assert rates[0] == max(rates)
    with pytest.raises(DataError, match="B = 32"):
        tune_offline(ROWS, STATES, PerToken(0.05), (8, 32), (1,), folds=3, bins=4)


def prompt(name: str) -> ShadowPrompt:
    return ShadowPrompt("set", name, np.arange(3))


def test_gains_are_judged_on_prompts_that_nothing_was_chosen_on() -> None:
    settings = TuneSettings(requests=4)
    fresh = [prompt(f"new{i}") for i in range(6)]
    tuning, judging, held_out = split_prompts([*fresh, prompt("p1")], STATES, settings)
    assert held_out
    assert len(judging) == 4
    assert len(tuning) == 3
    assert not {p.name for p in tuning} & {p.name for p in judging}


def test_known_prompts_are_owned_up_to() -> None:
    known = [prompt(f"p{i}") for i in range(6)]
    assert split_prompts(known, STATES, TuneSettings(requests=4))[2] is False
    few = [prompt("new"), *known]
    assert split_prompts(few, STATES, TuneSettings(requests=4))[2] is False
    with pytest.raises(DataError, match="1 prompt"):
        split_prompts(known[:1], STATES, TuneSettings())
