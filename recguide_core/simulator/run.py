"""A simulation from settings to the `recguide.bench/1` record. No model, no torch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core import metrics
from recguide_core.acceptance import AcceptanceModel, load_model
from recguide_core.engine.guidance import PAPER_MENU
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import DEFAULT_BLOCK, Planner
from recguide_core.engine.planners_adaptive import AdaptivePlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.virtual import VirtualClock
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.host import HostedCost
from recguide_core.simulator.core import SimulatedCore, Workload
from recguide_core.simulator.guide import Calibrated, calibrate, guidance
from recguide_core.simulator.load import (
    Timeline,
    poisson_arrivals,
    ramp_arrivals,
    run_arrivals,
    run_closed,
)
from recguide_core.simulator.observe import BlockCounts
from recguide_core.simulator.prices import named_clock, priced
from recguide_core.simulator.recorded import read_trace, recorded_tables, recorded_workload
from recguide_core.simulator.rho import rho_for
from recguide_core.simulator.settings import ADAPTIVE, SimCell, SimSettings
from recguide_core.simulator.texts import draw_texts
from recguide_core.tables import shipped_path

SCHEMA = "recguide.bench/1"


@dataclass(frozen=True, slots=True)
class CellResult:
    """A simulated cell.

    Attributes:
        blocks: what the rounds did, see `BlockCounts`.
        origins: steps by how their price is known; kinds: forwards by kind.
    """

    cell: SimCell
    timeline: Timeline
    blocks: BlockCounts
    origins: dict[str, int]
    kinds: dict[str, int] = field(default_factory=dict)


@cache
def acceptance_of(model: str) -> tuple[AcceptanceModel, str]:
    """The shipped acceptance model and its content hash."""
    found, _, digest = load_model(shipped_path(model, "acceptance"))
    return found, digest


@cache
def learned(model: str, menu: tuple[int, ...], traces: str | None = None) -> Calibrated:
    """Value and branch tables of a simulated model or of recorded traces, once per process."""
    if traces is not None:
        return recorded_tables(read_trace(Path(traces)))
    return calibrate(acceptance_of(model)[0], menu)


def workload(settings: SimSettings, count: int) -> Workload:
    """`count` requests of the settings' texts, or as many of the recorded ones."""
    if settings.traces is not None:
        return recorded_workload(read_trace(Path(settings.traces))).take(count)
    texts = draw_texts(acceptance_of(settings.model)[0], count, settings.max_tokens, settings.seed)
    prompt = np.full(count, max(settings.prompt_tokens, 1), np.int64)
    return Workload(texts, np.full(count, settings.max_tokens), prompt)


def clock_of(settings: SimSettings, cell: SimCell) -> VirtualClock:
    """The virtual clock that charges a cell."""
    return named_clock(
        f"{settings.gpu}/{settings.model}",
        settings.host,
        context=_charged_context(settings),
        padded=cell.batching == "padded",
    )


def _charged_context(settings: SimSettings) -> int:
    """Committed tokens that the clock adds to a request's own: prompts are short unless set."""
    return 0 if settings.prompt_tokens else settings.context


def planner_of(
    settings: SimSettings, cell: SimCell, rho: float | None = None, *, learning: bool = True
) -> Planner:
    """The planner of a cell; adaptive ones get the simulated model's tables and a tuned rho.

    Args:
        rho: instead of the tuned one, for a policy whose rate is not known.
    """
    if cell.method == "overlap" and cell.variant:
        corrections = 1 if cell.variant == "first correction" else 2
        rule = BranchRule(corrections=corrections, continuation=False)
        return OverlapPlanner(cell.block_size or DEFAULT_BLOCK, rule)
    if cell.method not in ADAPTIVE:
        return make_planner(cell.method, block=cell.block_size)
    prices = priced(settings.gpu, settings.model)
    tables = learned(settings.model, settings.menu, settings.traces)
    rate: float | None = None
    if rho is None:
        rho, rate = rho_for(settings, cell)
    guide = guidance(
        tables,
        HostedCost(prices.cost, settings.host, _charged_context(settings)),
        {cell.concurrency: rho},
        {} if rate is None else {cell.concurrency: rate},
        PAPER_MENU if cell.variant == "no AR" else settings.menu,
    )
    how = "bucketed" if cell.batching == "bucketed" else "ragged"
    if cell.variant == "entropy only":
        return AdaptivePlanner(guide, how, ignore_outcome=True)
    return make_planner(cell.method, guidance=guide, batching=how, learning=learning)


def simulate_cell(
    settings: SimSettings, cell: SimCell, planner: Planner | None = None, count: int | None = None
) -> CellResult:
    """Run one cell.

    Args:
        planner: instead of the cell's own (ablations); count: requests instead of the settings'.
    """
    jobs = workload(settings, count or settings.requests_for(cell))
    slots = round(settings.waiting * cell.concurrency)
    core = SimulatedCore(
        jobs,
        planners=[planner or planner_of(settings, cell)],
        settings=EngineSettings(
            max_requests=cell.concurrency,
            max_admitted=slots,
            batching="bucketed" if cell.batching == "bucketed" else "ragged",
        ),
        clock=clock_of(settings, cell),
    )
    blocks = BlockCounts.empty(jobs.texts.category)
    core.observers.append(blocks)
    timeline = _serve(core, jobs, settings, slots)
    return CellResult(cell, timeline, blocks, core.virtual.origins, dict(core.counters.by_kind))


def _serve(core: SimulatedCore, jobs: Workload, settings: SimSettings, slots: int) -> Timeline:
    if settings.rate is None:
        return run_closed(core, jobs, slots)
    if settings.ramp is None:
        moments = poisson_arrivals(settings.rate, len(jobs), settings.seed)
    else:
        moments = ramp_arrivals(settings.rate, settings.ramp, len(jobs), settings.seed)
    return run_arrivals(core, jobs, moments)


def simulate(
    settings: SimSettings,
    done: Callable[[SimCell, dict[str, Any]], None] = lambda cell, row: None,
) -> dict[str, Any]:
    """Run every cell and return the `recguide.bench/1` record, `tps` on the virtual clock.

    Args:
        done: called with each finished cell and its row, in order.
    """
    rows = []
    for result in run_cells(settings, settings.cells()):
        row = row_of(result, settings)
        rows.append(row)
        done(result.cell, row)
    prices = priced(settings.gpu, settings.model)
    return {
        "schema": SCHEMA,
        "rows": rows,
        "run": {
            "settings": settings.as_record(),
            "simulated": True,
            "clock": f"{prices.name} ({prices.source})",
            "cost_hash": prices.digest,
            "acceptance_hash": acceptance_of(settings.model)[1],
        },
    }


def run_cells(settings: SimSettings, cells: Sequence[SimCell]) -> Iterable[CellResult]:
    """Results of the cells in order; heavy ones are shared out over `workers` processes."""
    if settings.workers == 1 or len(cells) == 1:
        yield from (simulate_cell(settings, cell) for cell in cells)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(settings.workers, len(cells)), mp_context=context) as pool:
        yield from pool.map(partial(simulate_cell, settings), cells)


def row_of(result: CellResult, settings: SimSettings) -> dict[str, Any]:
    """The row of a cell, with the keys of a measured one where a simulation has them."""
    t, cell = result.timeline, result.cell
    forwards, rounds = int(t.forwards.sum()), int(t.rounds.sum())
    tokens, round_tokens = int(t.tokens.sum()), int(t.round_tokens.sum())
    residence = t.end - t.arrival
    decode = (t.end - t.first) / np.maximum(t.tokens - 1, 1)
    steady = t.steady_tps
    return {
        "method": cell.method,
        "block_size": cell.block_size,
        "concurrency": cell.concurrency,
        "batching": cell.batching,
        "requests": len(t.tokens),
        "failed": 0,
        "output_tokens": tokens,
        "seconds": t.seconds,
        "tps": t.tps,
        "tps_steady": None if np.isnan(steady) else steady,
        "tps_per_request": t.user_tps,
        "requests_per_s": len(t.tokens) / t.seconds,
        "tau": metrics.tau(round_tokens, forwards),
        "tpf": metrics.tpf(round_tokens, forwards),
        "accepted_length": metrics.accepted_length(round_tokens, rounds),
        "reuse": metrics.reuse(int(t.reused.sum()), rounds),
        "rounds": rounds,
        "forwards": forwards,
        "ttft_ms": float(np.median(t.first - t.arrival) * 1e3),
        "tpot_ms": float(np.median(decode) * 1e3),
        "e2e_ms": float(np.median(residence) * 1e3),
        "p99_e2e_ms": float(np.quantile(residence, 0.99) * 1e3),
        "host_share": None,
        "lossless": None,
        "clock": f"{settings.gpu}/{settings.model}",
        "blocks": result.blocks.shares(),
        "price_origins": result.origins,
        "steps": t.steps,
    }
