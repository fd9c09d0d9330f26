"""What the suite `paper` simulates, and the two host times that it fits first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recguide_core.bench.suites.published import LOADS, TABLE5, TABLE6
from recguide_core.engine.planners import recipe_block
from recguide_core.policy.cost import VERIFY, Shapes
from recguide_core.policy.host import HostTime
from recguide_core.simulator.prices import priced
from recguide_core.simulator.run import CellResult, acceptance_of, run_cells
from recguide_core.simulator.settings import SimCell, SimSettings

BLOCKS = (8, 16, 32)
WAITING = 2.0
"""Requests per batch place where buckets need more than a batch to choose from."""


@dataclass(frozen=True, slots=True)
class PaperRuns:
    """Everything simulated for one model.

    Attributes:
        host: fitted host time; loads: C of the tables over loads.
        results: by `SimCell.key`, those with waiting requests ending in `, waiting`.
    """

    model: str
    host: HostTime
    loads: tuple[int, ...]
    results: dict[str, CellResult]

    def get(
        self,
        method: str,
        load: int,
        block: int | None = None,
        batching: str = "ragged",
        variant: str = "",
        waiting: bool = False,
    ) -> CellResult:
        """The result of a cell."""
        key = SimCell(method, block, load, batching, variant).key
        return self.results[f"{key}, waiting" if waiting else key]

    def mean_tps(
        self,
        method: str,
        block: int | None = None,
        batching: str = "ragged",
        variant: str = "",
        waiting: bool = False,
    ) -> float:
        """Steady tokens/s, mean over C = 2..128."""
        found = [self.get(method, c, block, batching, variant, waiting) for c in self.loads]
        return float(np.mean([r.timeline.steady_tps for r in found]))

    def best_fixed(self, load: int) -> float:
        """Steady tokens/s of the best of B = 8, 16, 32 at this load."""
        return max(self.get("linear", load, b).timeline.steady_tps for b in BLOCKS)


def fitted_host(model: str) -> HostTime:
    """Host time of the paper's engine: per step from its LinearSS at C = 1 (Table 5), per request
    from its "Fixed Block" mean over C = 2..128 (Table 6), both with closed-form tau."""
    law = acceptance_of(model)[0].overall
    alone = law.tau(16) / 2 / TABLE5[model]["linear"] * 1e3 - _forward(model, 1, 16)

    def mean_tps(each: float) -> float:
        host = HostTime(max(alone - each, 0.0), each)
        rates = []
        for load in LOADS:
            block = recipe_block(load)
            step = _forward(model, load, block) + float(host.ms(load))
            rates.append(load * law.tau(block) / 2 / step * 1e3)
        return float(np.mean(rates))

    low, high = 0.0, alone
    for _ in range(40):
        middle = 0.5 * (low + high)
        if mean_tps(middle) > TABLE6[model]["fixed"]:
            low = middle
        else:
            high = middle
    return HostTime(alone - low, low)


def _forward(model: str, load: int, block: int) -> float:
    shape = (VERIFY, load, load * block, 800 * load, block, 0)
    return float(priced("b200", model).cost.ms(Shapes(*(np.array([v]) for v in shape)))[0])


def single_cells() -> list[SimCell]:
    """Low concurrency: Tables 2, 3 and 5, and what lies beyond at C = 1."""
    return [
        SimCell("ar", None, 1),
        *(SimCell("linear", b, 1) for b in BLOCKS),
        SimCell("dflash", 16, 1),
        SimCell("tidar", 16, 1),
        SimCell("overlap", 16, 1),
        SimCell("overlap", 16, 1, variant="first correction"),
        SimCell("overlap", 16, 1, variant="two corrections"),
        SimCell("overlap", 32, 1),
        SimCell("recguide", None, 1),
    ]


def load_cells(loads: Sequence[int]) -> list[SimCell]:
    """High concurrency: Tables 4 and 6, Figure 5, and what lies beyond."""
    return [
        cell
        for c in loads
        for cell in (
            *(SimCell("linear", b, c) for b in BLOCKS),
            SimCell("adaptive", None, c, "padded", "entropy only"),
            SimCell("adaptive", None, c, "padded"),
            SimCell("adaptive", None, c, "bucketed"),
            SimCell("adaptive", None, c),
            SimCell("recguide", None, c, variant="no AR"),
            SimCell("recguide", None, c),
        )
    ]


def waiting_cells(loads: Sequence[int]) -> list[SimCell]:
    """More requests in the engine than a batch holds: buckets, and fixed blocks as control."""
    return [
        cell
        for c in loads
        for cell in (SimCell("adaptive", None, c, "bucketed"), SimCell("linear", 16, c))
    ]


def run_paper(
    model: str,
    *,
    tokens: int,
    requests: int,
    workers: int,
    done: Callable[[str], None],
    loads: tuple[int, ...] = LOADS,
) -> PaperRuns:
    """Simulate all cells of one model.

    Args:
        tokens: of each answer; requests: of a cell, at least four times its load.
        loads: C of the tables over loads; done: called with a line per finished part.
    """
    host = fitted_host(model)
    settings = SimSettings(
        model=model, max_tokens=tokens, host=host, workers=workers, prompt_tokens=0
    )
    results = {}
    plans = ((single_cells() + load_cells(loads), 1.0), (waiting_cells(loads), WAITING))
    for cells, waiting in plans:
        for load in sorted({cell.concurrency for cell in cells}):
            part = [cell for cell in cells if cell.concurrency == load]
            count = max(requests, 4 * load)
            trial = replace(settings, requests=count, waiting=waiting)
            for result in run_cells(trial, part):
                suffix = ", waiting" if waiting > 1 else ""
                results[result.cell.key + suffix] = result
            done(f"{model}, C = {load}: {len(part)} cells")
    return PaperRuns(model, host, loads, results)
