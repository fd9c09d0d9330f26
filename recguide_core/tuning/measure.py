"""The gain of a policy on the real engine, and rho as its own states want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recguide_core.calibration.recording import Recorded
from recguide_core.engine.events import Observer
from recguide_core.engine.guidance import Guidance
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import recipe_block
from recguide_core.policy.cost import CostModel
from recguide_core.policy.tune import bootstrap_gain
from recguide_core.tuning.onpolicy import LoadRun, run_load

FIXED = (4, 8, 16, 32)
"""Blocks of LinearSS that RecGuide is compared with, beside plain AR."""

AS_GOOD = 0.02
"""Scores of on-policy runs that are this close are taken for the same."""

Progress = Callable[[str], None]


FRACTIONS = (0.15, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5)
"""Of Dinkelbach's rho. It answers which choices are best if states come as they come; on a text a
hard stretch stays until its tokens are through, whatever the block, so less is often better. More
is better where drafting does not pay at all: the largest leave plain AR."""
MIDDLE = 0.7
"""At which rules are compared before rho is searched."""


class Runner:
    """On-policy runs under one cost model."""

    def __init__(self, cost: CostModel, positions: int, progress: Progress) -> None:
        self.cost, self.positions, self.progress = cost, positions, progress

    def run(
        self,
        method: str,
        recorded: Recorded,
        load: int,
        block: int | None = None,
        guidance: Guidance | None = None,
        *,
        learning: bool = True,
        observer: Observer | None = None,
    ) -> LoadRun:
        """One method at one load; `learning` is RecGuide's; `observer` sees its rounds."""
        name = method if block is None else f"{method}/{block}"
        self.progress(f"C = {load}: {name}")
        planner = make_planner(method, block, guidance, learning=learning)
        return run_load(
            planner,
            recorded,
            load,
            self.cost,
            positions=self.positions,
            method=name,
            observer=observer,
        )

    def choose_rule(
        self, guidances: Sequence[Guidance], recorded: Recorded, load: int
    ) -> tuple[Guidance, list[dict[str, Any]]]:
        """The fastest of several rules at the lowest load, each at the middle of the rho search."""
        history = []
        for guidance in guidances:
            rho = guidance.rho_at(load) * MIDDLE
            trial = replace(guidance, rho={load: rho})
            done = self.run("recguide", recorded, load, guidance=trial, learning=False)
            history.append(
                {
                    "delta": guidance.rule.delta,
                    "corrections": guidance.rule.corrections,
                    "continuation": guidance.rule.continuation,
                    "tokens_per_s": done.tokens_per_s,
                    "score": done.score,
                }
            )
        best = max(range(len(history)), key=lambda i: history[i]["score"])
        return guidances[best], history

    def correct(
        self, guidance: Guidance, recorded: Recorded, loads: Sequence[int], iterations: int
    ) -> tuple[Guidance, list[dict[str, Any]]]:
        """The guidance with rho and its rate per load after the on-policy search, and the history.

        The first iteration runs the policy at fractions of the out-of-fold rho; each further one
        runs the neighbours of the fastest at half the distance. Loads in between keep their
        out-of-fold rho, scaled as their neighbours were. The policy does not learn meanwhile, so
        each run answers for one rho; the rate of the fastest is what rho is meant for.
        """
        factor: dict[int, float] = {}
        rate: dict[int, float] = {}
        history: list[dict[str, Any]] = []
        for load in loads:
            found = self._search_rho(guidance, recorded, load, iterations, history)
            if any(run.score > 0 for run in found.values()):
                factor[load] = _smallest_of_the_best(found)
                rate[load] = found[factor[load]].rate
        if not factor:
            return guidance, history
        logs = np.log(sorted(factor))
        factors = [factor[c] for c in sorted(factor)]
        rho = {
            load: float(start * np.interp(np.log(load), logs, factors))
            for load, start in guidance.rho.items()
        }
        return replace(guidance, rho=rho, rate=rate), history

    def _search_rho(
        self,
        guidance: Guidance,
        recorded: Recorded,
        load: int,
        iterations: int,
        history: list[dict[str, Any]],
    ) -> dict[float, LoadRun]:
        """The run of each fraction of the out-of-fold rho that was tried."""
        start, found = guidance.rho_at(load), dict[float, LoadRun]()
        for number in range(iterations):
            for fraction in _candidates(found, number):
                trial = replace(guidance, rho={load: start * fraction})
                done = self.run("recguide", recorded, load, guidance=trial, learning=False)
                found[fraction] = done
                history.append(
                    {
                        "concurrency": load,
                        "iteration": number + 1,
                        "rho": start * fraction,
                        "fraction": fraction,
                        "tokens_per_s": done.tokens_per_s,
                        "score": done.score,
                    }
                )
        return found

    def measure(self, guidance: Guidance, recorded: Recorded, load: int) -> dict[str, Any]:
        """RecGuide, every baseline and the gain over the best and over the recipe."""
        ours = self.run("recguide", recorded, load, guidance=guidance)
        runs = [self.run("ar", recorded, load)]
        runs += [self.run("linear", recorded, load, block) for block in FIXED]
        best = max(runs, key=lambda r: r.tokens_per_s)
        recipe = next(r for r in runs if r.method == f"linear/{recipe_block(load)}")
        paper = self.run("overlap", recorded, load, guidance.block, guidance)
        return {
            "concurrency": load,
            "methods": {r.method: r.tokens_per_s for r in (*runs, paper, ours)},
            "best": best.method,
            "recipe": recipe.method,
            "over_best": _gain(ours, best),
            "over_recipe": _gain(ours, recipe),
            "blocks": {str(b): n for b, n in sorted(ours.blocks.items())},
            "reuse": ours.reused / max(ours.rounds, 1),
        }


def _candidates(found: dict[float, LoadRun], iteration: int) -> list[float]:
    """Fractions to run next."""
    if not iteration:
        return list(FRACTIONS)
    best = max(found, key=lambda f: found[f].score)
    step = 0.5 ** (iteration + 1)
    return [best * (1 - step), best * (1 + step)]


def _smallest_of_the_best(found: dict[float, LoadRun]) -> float:
    """Fraction of rho. Beyond some rho all requests decode plainly and nothing depends on it any
    more, except how far traffic that could draft would have to bring it down."""
    enough = (1 - AS_GOOD) * max(run.score for run in found.values())
    return min(f for f, run in found.items() if run.score >= enough)


def _gain(ours: LoadRun, theirs: LoadRun) -> dict[str, float | bool]:
    gain, low, high = bootstrap_gain(ours.per_prompt(), theirs.per_prompt())
    return {"gain": gain, "low": low, "high": high, "sure": bool(low > 0)}
