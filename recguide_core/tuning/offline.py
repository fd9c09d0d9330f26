"""What a trace and a cost model say before any policy runs: low-load search and rho. No torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recguide_core.calibration.quality import folds_of, out_of_fold
from recguide_core.calibration.settings import DELTAS
from recguide_core.calibration.traces import (
    States,
    drafted_rows,
    overlap_trial,
    state_weights,
)
from recguide_core.errors import DataError
from recguide_core.policy.allocate import bucketed_prices, choose
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.cost import CostModel
from recguide_core.policy.tune import (
    OverlapTrial,
    best_trial,
    bootstrap_gain,
    dinkelbach,
    pooled_rate,
)
from recguide_core.policy.value import Reals
from recguide_core.records import IntArray

BRANCHES = ((0, False), (1, False), (2, False), (0, True), (1, True), (2, True))
"""(corrections, continuation) that the low-load search tries."""


@dataclass(frozen=True, slots=True)
class Offline:
    """Values that the trace gives without running a policy.

    Attributes:
        menu: blocks, ascending; `kv`: mean committed tokens of a request.
        values: out-of-fold V of each state and block, float64 [n, menu]; `weight` float64 [n].
        trials: every (block, delta, branches), fastest first at the lowest load; `best` the first.
        rho: out-of-fold rho_C per load, tokens per ms.
        gain: per load, the out-of-fold gain of adaptive drafting alone over the best fixed block
            with its bootstrap interval over prompts.
        shares: per load, share of rounds that choose each block.
    """

    menu: IntArray
    kv: float
    values: Reals
    weight: Reals
    trials: list[OverlapTrial]
    rates: list[float]
    rho: dict[int, float]
    gain: dict[int, tuple[float, float, float]]
    shares: dict[int, list[float]]

    @property
    def best(self) -> OverlapTrial:
        return self.trials[0]


def tune_offline(
    columns: Mapping[str, Any],
    states: States,
    model: CostModel,
    menu: Sequence[int],
    loads: Sequence[int],
    *,
    folds: int,
    bins: int,
) -> Offline:
    """Search delta, block and branches for the lowest load, and rho for every load.

    Raises:
        DataError: the trace lacks a block of the menu.
    """
    known = states.menu.tolist()
    absent = [b for b in menu if b not in known]
    if absent:
        raise DataError(
            f"The trace has no rounds of B = {absent[0]}; it knows {', '.join(map(str, known))}.",
            "Calibrate with that block in --menu, or leave it out of the menu.",
        )
    weight = state_weights(states)
    kv = float(weight @ states.kv)
    trials = low_load_trials(columns, states, weight)
    rate = {id(t): t.rate(model, min(loads), kv) for t in trials}
    best = best_trial(trials, model, min(loads), kv)
    ordered = sorted(trials, key=lambda t: (t is not best, -rate[id(t)]))

    keep = np.flatnonzero(np.isin(states.menu, np.asarray(menu)))
    fold = folds_of(states.requests, folds)[states.rounds.request]
    values = out_of_fold(states.rounds, fold, known, bins)[0][:, keep]
    accepted = states.rounds.accepted[:, keep].astype(np.float64)
    blocks = states.menu[keep]
    rho: dict[int, float] = {}
    gain: dict[int, tuple[float, float, float]] = {}
    shares: dict[int, list[float]] = {}
    for load in loads:
        prices = bucketed_prices(model, load, blocks, kv)
        rho[load] = dinkelbach(values, prices, weight)
        choice = choose(values, prices, rho[load])
        shares[load] = [float(weight @ (choice == i)) for i in range(len(blocks))]
        fixed = [
            pooled_rate(accepted, prices, np.full(len(states), i), weight)
            for i in range(len(blocks))
        ]
        ours = per_prompt(states, weight, accepted, prices, choice)
        usual = np.full(len(states), int(np.argmax(fixed)))
        theirs = per_prompt(states, weight, accepted, prices, usual)
        gain[load] = bootstrap_gain(ours, theirs)
    return Offline(
        blocks, kv, values, weight, ordered, [rate[id(t)] for t in ordered], rho, gain, shares
    )


def low_load_trials(
    columns: Mapping[str, Any], states: States, weight: Reals
) -> list[OverlapTrial]:
    """Every drafting block with every delta and set of branches, without doubles."""
    trials = []
    for block in states.menu[states.menu > 1].tolist():
        rows = drafted_rows(columns, states, block)
        for (corrections, continuation), delta in itertools.product(BRANCHES, DELTAS):
            if corrections == 0 and not continuation and delta != DELTAS[0]:
                continue
            rule = BranchRule(delta, corrections, continuation)
            trials.append(overlap_trial(rows, rule, weight))
    return trials


def per_prompt(
    states: States, weight: Reals, accepted: Reals, prices: Reals, choice: IntArray
) -> Reals:
    """Weighted tokens and ms of each prompt under a choice of blocks, float64 [prompts, 2]."""
    rows = np.arange(len(choice))
    tokens = weight * accepted[rows, choice]
    ms = weight * np.broadcast_to(prices, accepted.shape)[rows, choice]
    _, prompt = np.unique(states.rounds.request, return_inverse=True)
    return np.stack([np.bincount(prompt, tokens), np.bincount(prompt, ms)], axis=1)
