"""A bench run from settings to record: load, warm up, measure, check, save, cell by cell."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recguide_core import inventory
from recguide_core.bench.arrivals import parse_ramp, schedule
from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.jobs import make_jobs, prompts_hash, warmup_jobs
from recguide_core.bench.load import Job, Sending, Target, closed_loop, open_loop
from recguide_core.bench.lossless import classify
from recguide_core.bench.report import write_report
from recguide_core.bench.rows import RequestRow, cell_row
from recguide_core.bench.store import RunFolder
from recguide_core.datasets import Loaded, Prompt, select
from recguide_core.datasets.benchmarks import instruction, template_hash
from recguide_core.errors import DataError

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


@dataclass(slots=True)
class _Bench:
    """What the cells of a run share."""

    config: BenchConfig
    model: Any
    jobs: Sequence[Job]
    warmup: Sequence[Job]
    folder: RunFolder | None
    watcher: Watcher
    tuned: Any = None
    reference: Any = None
    rows: list[dict[str, Any]] = field(default_factory=list)


def run_bench(
    config: BenchConfig,
    loaded: Loaded,
    *,
    output: Output | None = None,
    watcher: Watcher | None = None,
    origins: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Measure every cell.

    Args:
        loaded: the prompts to draw from.
        origins: where each setting came from, kept in the record.

    Returns:
        The `recguide.bench/1` record: `rows`, and `run` with settings, hashes and versions.

    Raises:
        RecGuideError: whatever the model, the prompts or the load make impossible.
    """
    bench, about = _prepare(config, loaded, output or Output(), watcher or Watcher(), origins or {})
    finished = bench.folder.finished_cells() if bench.folder else {}
    for cell in config.cells():
        row = finished.get(cell.key) or _measure(bench, cell)
        bench.rows.append(row)
        bench.watcher.cell_done(cell, row)
    record = {"schema": SCHEMA, "rows": bench.rows, "run": about}
    if bench.folder is not None:
        bench.folder.finish(record)
        write_report(bench.folder.path, *bench.folder.contents())
    return record


def _prepare(
    config: BenchConfig,
    loaded: Loaded,
    output: Output,
    watcher: Watcher,
    origins: dict[str, str],
) -> tuple[_Bench, dict[str, Any]]:
    from recguide_core.bench.target import ModelRenders, load_policy, threads_in_use
    from recguide_core.model.registry import load_model

    model = load_model(config.model, device=config.device, dtype=config.dtype)
    tuned = load_policy(model, config) if config.guided or config.held_out else None
    known = frozenset() if tuned is None else tuned.prompts
    pool = _held_out(loaded.prompts, known) if config.held_out else loaded.prompts
    renders = ModelRenders(model)
    raw = config.template == "raw"
    most = max(config.requests_for(cell) for cell in config.cells())
    jobs = make_jobs(
        select(pool, most, config.seed),
        renders,
        {name: instruction(name, config.template) for name in loaded.datasets},
        raw=raw,
        max_tokens=config.max_tokens,
        context=model.config.max_positions,
    )
    warmup = warmup_jobs(config.warmup, renders, raw=raw, max_tokens=config.max_tokens)
    about = {
        "settings": config.as_record(),
        "origins": origins,
        "model_hash": model.hash,
        "prompts_hash": prompts_hash(jobs),
        "template_hash": template_hash(loaded.datasets, config.template),
        "data": _data_record(loaded, jobs, known),
        "policy": _policy_record(tuned),
        "prefix_cache": False,
        "threads": config.threads or threads_in_use(),
        "versions": inventory.provenance(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    folder = None
    if output.path is not None:
        folder = RunFolder(output.path)
        folder.start(about, resume=output.resume, overwrite=output.overwrite)
    return _Bench(config, model, jobs, warmup, folder, watcher, tuned), about


def _held_out(prompts: Sequence[Prompt], known: frozenset[str]) -> list[Prompt]:
    """The prompts that the policy has not seen."""
    unseen = [prompt for prompt in prompts if prompt.hash not in known]
    if not unseen:
        raise DataError(
            "Every prompt of the data was used to make the policy.",
            "Choose other data, or leave --held-out away.",
        )
    return unseen


def _policy_record(tuned: Any) -> dict[str, Any] | None:
    if tuned is None:
        return None
    hashes = dict(tuned.guidance.hashes)
    return {"path": str(tuned.policy.path), "hashes": hashes, "notes": list(tuned.notes)}


def _data_record(loaded: Loaded, jobs: Sequence[Job], known: frozenset[str]) -> dict[str, Any]:
    used = {job.prompt.hash for job in jobs}
    return {
        "sources": loaded.sources,
        "columns": loaded.columns,
        "prompts": len(loaded.prompts),
        "used": len(used),
        "repeats": len(jobs) - len(used),
        "seen_by_policy": len(used & known),
        "skipped": [f"{s.file}:{s.line}: {s.cause}" for s in loaded.skipped],
        "prompt_hashes": sorted(used),
    }


def _measure(bench: _Bench, cell: Cell) -> dict[str, Any]:
    """One cell: warm-up outside the window, the window, the host's share, the check."""
    from recguide_core.bench.target import EngineTarget

    config = bench.config
    jobs = bench.jobs[: config.requests_for(cell)]
    target = EngineTarget(bench.model, cell, config, bench.tuned)

    def save(row: RequestRow) -> None:
        if bench.folder is not None:
            bench.folder.add_request(row)
        if not row.warmup:
            bench.watcher.request_done(row)

    bench.watcher.cell_started(cell, len(jobs))
    warming = Sending(cell.key, save, warmup=True, ignore_eos=config.ignore_eos)
    warm = closed_loop(target, bench.warmup, cell.concurrency, warming)
    target.open_window()
    rows = _drive(target, cell, jobs, config, replace(warming, warmup=False))
    counted = target.window_record()
    # On a virtual clock the host's time is a parameter of the clock, not of this machine.
    host = target.host_share() if config.clock == "wall" else None
    if config.check:
        bench.watcher.checking(cell)
        _check(bench, jobs, rows)
    limits = (config.ttft_limit_ms, config.tpot_limit_ms)
    row = {**cell_row(cell, rows, clock=target.clock, host_share=host, limits_ms=limits), **counted}
    if bench.folder is not None:
        bench.folder.add_cell(cell.key, row, [*warm, *rows])
    return row


def _drive(
    target: Target, cell: Cell, jobs: Sequence[Job], config: BenchConfig, sending: Sending
) -> list[RequestRow]:
    """The load of a cell: a number in flight, a ramp, or arrivals at a rate."""
    if cell.rate is not None:
        moments = schedule(len(jobs), cell.rate, config.arrivals, config.seed)
        return open_loop(target, jobs, moments.tolist(), sending)
    if cell.ramp is not None:
        ramp = parse_ramp(cell.ramp)
        return closed_loop(target, jobs, lambda n: ramp.in_flight(n, len(jobs)), sending)
    return closed_loop(target, jobs, cell.concurrency, sending)


def _check(bench: _Bench, jobs: Sequence[Job], rows: Sequence[RequestRow]) -> None:
    """Writes into each row whether its text is AR's."""
    from recguide_core.bench.target import Reference

    if bench.reference is None:
        bench.reference = Reference(bench.model, bench.config)
    outputs = bench.reference.outputs(jobs)
    for row in rows:
        if row.ok:
            job = jobs[row.index]
            verdict = classify(
                job.tokens, outputs[row.index], row.tokens, bench.reference.best_after
            )
            row.lossless, row.evidence = verdict.kind, verdict.record()
