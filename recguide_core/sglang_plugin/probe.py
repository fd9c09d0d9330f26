"""Probes: rows that measure the served model, run inside SGLang before it takes requests.

A probe file names a job: time forwards (`profile`), decode with every block from the same state
(`shadow`), or record every block at every position (`record`). The job is that of the embedded
engine, over SGLang's weights, ranks, KV pool, attention and graphs. Every rank does the same
steps; the first one writes what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.engine.machine import Machine
from recguide_core.sglang_plugin.versions import installed_version
from recguide_core.tables import read_json, write_json

Agree = Callable[[bool], bool]
"""Turns this rank's answer into that of rank 0."""


@dataclass(frozen=True, slots=True)
class Station:
    """Where a probe runs.

    Attributes:
        machine: the served model; leader: this rank writes; agree: see `Agree`.
    """

    machine: Machine
    leader: bool = True
    agree: Agree = bool


class _Report:
    """Tells whoever waits how far the job is."""

    def __init__(self, path: Path, leader: bool) -> None:
        self._path, self._leader = path, leader

    def __call__(self, done: int, total: int, text: str = "") -> None:
        if self._leader:
            write_json(self._path, {"done": done, "total": total, "text": text})


def run_probe(path: Path, station: Station, about: Mapping[str, str]) -> None:
    """Do the job of a probe file and write its result.

    Args:
        about: what the result says of the server: device, dtype, attention, graphs.
    """
    job = read_json(path)
    report = _Report(Path(job["progress"]), station.leader)
    found = JOBS[job["kind"]](job, station, report)
    if station.leader:
        write_json(Path(job["result"]), {**found, "about": dict(about)})


def about_server(device: Any, executor: Any, parts: int) -> dict[str, str]:
    """What tables say of the server that they were measured in.

    Args:
        executor: of packed rows (`executors`); parts: tensor-parallel ranks.
    """
    import torch

    from recguide_core.sglang_plugin.graphs import MOST_TOKENS

    cuda = torch.device(device).type == "cuda"
    twin = executor.why_twin
    # Graphs hold the kernel, so there are none where the twin runs.
    captured = twin is None and getattr(executor, "graphs", None) is not None
    return {
        "engine": f"sglang {installed_version()}",
        "dtype": str(executor.model.dtype).removeprefix("torch."),
        "attention": "sglang rows, packed kernel" if twin is None else "sglang rows, torch",
        "graph": f"captured up to {MOST_TOKENS} tokens" if captured else "eager",
        "tp": str(parts),
        "threads": str(torch.get_num_threads()),
        "driver": torch.version.cuda or "none" if cuda else "none",
    }


def _profile(job: Mapping[str, Any], station: Station, report: _Report) -> dict[str, Any]:
    from recguide_core.profiling.grid import Point
    from recguide_core.profiling.measure import Bench
    from recguide_core.profiling.run import time_points, within

    points = [Point(**point) for point in job["points"]]
    seconds = time.thread_time if job["cpu_time"] else time.perf_counter
    inside = within(job["budget_s"])

    def on_point(done: int, total: int, point: Point) -> None:
        report(done, total, point.name)

    bench = Bench(station.machine, points, seconds)
    timings = time_points(bench, points, lambda: station.agree(inside()), on_point)
    return {"timings": timings}


def _prompts(job: Mapping[str, Any]) -> list[Any]:
    from recguide_core.calibration.shadow import ShadowPrompt

    return [
        ShadowPrompt(p["data"], p["name"], np.asarray(p["tokens"], np.int64))
        for p in job["prompts"]
    ]


def _shadow(job: Mapping[str, Any], station: Station, report: _Report) -> dict[str, Any]:
    from recguide_core.calibration.run import log_request
    from recguide_core.calibration.shadow import ShadowDecoder

    decoder = ShadowDecoder(
        station.machine,
        job["menu"],
        seed=job["seed"],
        max_tokens=job["max_tokens"],
        batch=job["batch"],
    )
    fitting = [p for p in _prompts(job) if decoder.fits(p)]
    report(0, len(fitting))
    for done, rows in enumerate(decoder.run(fitting), start=1):
        if station.leader:
            log_request(Path(job["log"]), rows)
        report(done, len(fitting))
    return {"fitting": len(fitting)}


def _record(job: Mapping[str, Any], station: Station, report: _Report) -> dict[str, Any]:
    from recguide_core.calibration.record import Recorder
    from recguide_core.calibration.recording import save_recordings

    recorder = Recorder(
        station.machine, job["blocks"], max_tokens=job["max_tokens"], batch=job["batch"]
    )
    fitting = [p for p in _prompts(job) if recorder.fits(p)]
    made = recorder.record(fitting, lambda done: report(done, len(fitting)))
    if station.leader:
        save_recordings(Path(job["recordings"]), job["about"], made)
    return {"fitting": len(fitting)}


JOBS: Mapping[str, Callable[[Mapping[str, Any], Station, _Report], dict[str, Any]]] = {
    "profile": _profile,
    "shadow": _shadow,
    "record": _record,
}
