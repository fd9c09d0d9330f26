"""A bench run from settings to record: load, warm up, measure, check, save, cell by cell."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from recguide_core import inventory
from recguide_core.bench.arrivals import parse_ramp, schedule
from recguide_core.bench.bits import ALTERNATIVES
from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.load import Cooldown, Job, Sending, Target, closed_loop, open_loop
from recguide_core.bench.report import write_report
from recguide_core.bench.rows import RequestRow, cell_row
from recguide_core.bench.store import RunFolder
from recguide_core.datasets import Loaded
from recguide_core.datasets.benchmarks import template_hash

SCHEMA = "recguide.bench/1"


def _silent(*_: Any) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class Watcher:
    """Calls by which a caller follows a run.

    Attributes:
        cell_started: the cell and how many requests it has.
        request_done: the row of each measured request, before it is checked.
        checking: the cell is measured; its outputs are being compared.
        cell_done: the cell and its row.
    """

    cell_started: Callable[[Cell, int], None] = _silent
    request_done: Callable[[RequestRow], None] = _silent
    checking: Callable[[Cell], None] = _silent
    cell_done: Callable[[Cell, dict[str, Any]], None] = _silent


@dataclass(frozen=True, slots=True)
class Output:
    """Where a run is saved; `path` None saves nothing."""

    path: Path | None = None
    resume: bool = False
    overwrite: bool = False


class CellTarget(Target, Protocol):
    """A target that also tells what it counted inside the window."""

    @property
    def clock(self) -> str: ...

    def open_window(self) -> None:
        """Warm-up is over."""

    def window_record(self) -> dict[str, Any]:
        """More columns of the cell's row, counted since the window opened."""

    def host_share(self, jobs: Sequence[Job]) -> float | None:
        """Share of a step that is not its forward, measured behind the window on jobs that are
        sent for it once more and are in no row; None where it cannot be known.
        """


class Site(Protocol):
    """Where requests are sent: the embedded engine, or a server.

    Attributes:
        jobs, warmup, cooldown: what is sent inside the window, before it, and beside its end.
        about: `model_hash`, `prompts_hash`, and whatever else the record says of the site.
    """

    jobs: Sequence[Job]
    warmup: Sequence[Job]
    cooldown: Sequence[Job]
    about: dict[str, Any]

    def target(self, cell: Cell) -> CellTarget: ...

    def follow(self, job: Job, row: RequestRow) -> Job:
        """The next turn of a conversation, the answer in `row` being part of its history."""

    def check(self, rows: Sequence[RequestRow]) -> None:
        """Writes into each row whether its text is AR's, where that can be known."""


@dataclass(slots=True)
class _Bench:
    """What the cells of a run share."""

    config: BenchConfig
    site: Site
    folder: RunFolder | None
    watcher: Watcher


def run_bench(
    config: BenchConfig,
    loaded: Loaded,
    *,
    site: Site | None = None,
    output: Output | None = None,
    watcher: Watcher | None = None,
    origins: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Measure every cell.

    Args:
        loaded: the prompts to draw from.
        site: where requests go; the embedded engine by default.
        origins: where each setting came from, kept in the record.

    Returns:
        The `recguide.bench/1` record: `rows`, and `run` with settings, hashes and versions.

    Raises:
        RecGuideError: whatever the model, the prompts or the load make impossible.
    """
    if site is None:
        from recguide_core.bench.embedded import EmbeddedSite

        site = EmbeddedSite(config, loaded)
    about = _about(config, loaded, site, origins or {})
    output = output or Output()
    folder = None
    if output.path is not None:
        folder = RunFolder(output.path)
        folder.start(about, resume=output.resume, overwrite=output.overwrite)
    bench = _Bench(config, site, folder, watcher or Watcher())
    finished = folder.finished_cells() if folder else {}
    rows = []
    for cell in config.cells():
        row = finished.get(cell.key) or _measure(bench, cell)
        rows.append(row)
        bench.watcher.cell_done(cell, row)
    record = {"schema": SCHEMA, "rows": rows, "run": about}
    if folder is not None:
        folder.finish(record)
        write_report(folder.path, *folder.contents())
    return record


def _about(
    config: BenchConfig, loaded: Loaded, site: Site, origins: dict[str, str]
) -> dict[str, Any]:
    """What the record says of the run beside its rows."""
    used = {job.prompt.hash for job in site.jobs}
    return {
        "settings": config.as_record(),
        "origins": origins,
        "template_hash": template_hash(loaded.datasets, config.template),
        "data": {
            "sources": loaded.sources,
            "columns": loaded.columns,
            "turns": loaded.turns,
            "prompts": len(loaded.prompts),
            "used": len(used),
            "repeats": len(site.jobs) - len(used),
            "skipped": [f"{s.file}:{s.line}: {s.cause}" for s in loaded.skipped],
            "prompt_hashes": sorted(used),
        },
        **site.about,
        "versions": inventory.provenance(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _measure(bench: _Bench, cell: Cell) -> dict[str, Any]:
    """One cell: warm-up before the window, the window, cool-down beside its end, the check."""
    config, site = bench.config, bench.site
    jobs = site.jobs if config.replay else site.jobs[: config.requests_for(cell)]
    target = site.target(cell)

    def save(row: RequestRow) -> None:
        if bench.folder is not None:
            bench.folder.add_request(row)
        if row.measured:
            bench.watcher.request_done(row)

    bench.watcher.cell_started(cell, sum(1 + len(job.prompt.later) for job in jobs))
    logprobs = ALTERNATIVES if config.bitwise else None
    warming = Sending(cell.key, save, True, ignore_eos=config.ignore_eos, logprobs=logprobs)
    began = target.now()
    warm = closed_loop(target, site.warmup, cell.concurrency, warming)
    opened = target.now()
    target.open_window()
    sending = replace(warming, warmup=False, follow=site.follow)
    cooldown = Cooldown(site.cooldown)
    rows = _drive(target, cell, jobs, config, sending, cooldown)
    counted, closed = target.window_record(), target.now()
    cool = cooldown.drain()
    phases = {
        "warmup": {"requests": len(warm), "seconds": opened - began},
        "cooldown": {"requests": len(cool), "seconds": target.now() - closed},
    }
    host = target.host_share(jobs)
    if config.check:
        bench.watcher.checking(cell)
        site.check(rows)
    limits = (config.ttft_limit_ms, config.tpot_limit_ms)
    row = cell_row(cell, rows, clock=target.clock, host_share=host, limits_ms=limits)
    row |= counted | phases
    if bench.folder is not None:
        bench.folder.add_cell(cell.key, row, [*warm, *rows, *cool])
    return row


def _drive(
    target: Target,
    cell: Cell,
    jobs: Sequence[Job],
    config: BenchConfig,
    sending: Sending,
    cooldown: Cooldown,
) -> list[RequestRow]:
    """The load of a cell: a number in flight, a ramp, arrivals at a rate, or recorded ones."""
    if cell.speed is not None:
        recorded = [(job.arrival_s or 0.0) / cell.speed for job in jobs]
        return open_loop(target, jobs, recorded, sending, cooldown)
    if cell.rate is not None:
        moments = schedule(len(jobs), cell.rate, config.arrivals, config.seed)
        return open_loop(target, jobs, moments.tolist(), sending, cooldown)
    if cell.ramp is not None:
        ramp = parse_ramp(cell.ramp)
        in_flight = partial(ramp.in_flight, total=len(jobs))
        return closed_loop(target, jobs, in_flight, sending, cooldown)
    return closed_loop(target, jobs, cell.concurrency, sending, cooldown)
