"""The gain of a policy on the real engine, and rho as its own states want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recguide_core.engine.guidance import Guidance
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import recipe_block
from recguide_core.policy.cost import CostModel
from recguide_core.policy.tune import bootstrap_gain
from recguide_core.tuning.onpolicy import LoadRun, run_load
from recguide_core.tuning.settings import TuneSettings

if TYPE_CHECKING:
    from recguide_core.calibration.shadow import ShadowPrompt
    from recguide_core.model.registry import LoadedModel

FIXED = (4, 8, 16, 32)
"""Blocks of LinearSS that RecGuide is compared with, beside plain AR."""

Progress = Callable[[str], None]


class Runner:
    """On-policy runs of one model under one cost model."""

    def __init__(
        self,
        model: LoadedModel,
        cost: CostModel,
        settings: TuneSettings,
        positions: int,
        progress: Progress,
    ) -> None:
        self.model, self.cost, self.settings = model, cost, settings
        self.positions, self.progress = positions, progress

    def run(
        self,
        method: str,
        prompts: Sequence[ShadowPrompt],
        load: int,
        block: int | None = None,
        guidance: Guidance | None = None,
    ) -> LoadRun:
        name = method if block is None else f"{method}/{block}"
        self.progress(f"C = {load}: {name}")
        return run_load(
            self.model,
            make_planner(method, block, guidance),
            prompts,
            load,
            self.cost,
            max_tokens=self.settings.max_tokens,
            positions=self.positions,
            method=name,
        )

    def correct(
        self, guidance: Guidance, prompts: Sequence[ShadowPrompt]
    ) -> tuple[dict[int, float], list[dict[str, Any]]]:
        """rho per load after the on-policy iterations, and their history.

        Each iteration takes the rate that the policy reached as the next rho (Dinkelbach's step
        on the states that the policy itself makes); the fastest rho stays. Loads in between keep
        their out-of-fold rho, scaled by the correction of their neighbours.
        """
        factor: dict[int, float] = {}
        history = []
        for load in self.settings.concurrency:
            rho = guidance.rho_at(load)
            tried: list[tuple[float, float]] = []
            for _ in range(self.settings.iterations):
                trial = replace(guidance, rho={load: rho})
                done = self.run("recguide", prompts, load, guidance=trial)
                tried.append((done.rate, rho))
                history.append({"concurrency": load, "rho": rho, "rate": done.rate})
                rho = done.rate
            best = max(tried)[1] if tried else rho
            factor[load] = best / guidance.rho_at(load)
        logs = np.log(sorted(factor))
        factors = [factor[c] for c in sorted(factor)]
        corrected = {
            load: float(rho * np.interp(np.log(load), logs, factors))
            for load, rho in guidance.rho.items()
        }
        return corrected, history

    def measure(
        self, guidance: Guidance, prompts: Sequence[ShadowPrompt], load: int
    ) -> dict[str, Any]:
        """RecGuide, every baseline and the gain over the best and over the recipe."""
        ours = self.run("recguide", prompts, load, guidance=guidance)
        runs = [self.run("ar", prompts, load)]
        runs += [self.run("linear", prompts, load, block) for block in FIXED]
        best = max(runs, key=lambda r: r.tokens_per_s)
        recipe = next(r for r in runs if r.method == f"linear/{recipe_block(load)}")
        paper = self.run("overlap", prompts, load, guidance.block, guidance)
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


def _gain(ours: LoadRun, theirs: LoadRun) -> dict[str, float | bool]:
    gain, low, high = bootstrap_gain(ours.per_prompt(), theirs.per_prompt())
    return {"gain": gain, "low": low, "high": high, "sure": bool(low > 0)}
