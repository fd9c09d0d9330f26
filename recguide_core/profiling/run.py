"""A profile from settings to a cost table: interleaved passes within a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recguide_core import inventory
from recguide_core.errors import MismatchError, UsageError
from recguide_core.policy.host import NO_HOST
from recguide_core.profiling.grid import BLOCKS, CONTEXTS, REQUESTS, SPREAD, Point, default_grid
from recguide_core.records import MAX_BLOCK
from recguide_core.tables import ANY_CPU, Table, make_table, provenance

if TYPE_CHECKING:
    from recguide_core.model.registry import LoadedModel

PASSES = 5
"""Passes over the grid; a disturbance of the machine then meets a point at most once or twice."""
REPEATS = 2
SOURCE = "recguide profile"


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """What to measure; raises UsageError when it cannot be.

    Attributes:
        gpu: `cpu`, or the name of the CUDA device that must be there (`h200`, `b200`, ...).
        any_cpu: label the table as good for every CPU (shipped tables).
        cpu_time: time the processor, not the wall: for a machine that others use as well.
        budget_s: seconds after which nothing more is timed. Points that were never reached are
            not in the table; the most important come first.
    """

    model: str = "nld-tiny"
    gpu: str = "cpu"
    dtype: str | None = None
    requests: tuple[int, ...] = REQUESTS
    blocks: tuple[int, ...] = BLOCKS
    contexts: tuple[int, ...] = CONTEXTS
    budget_s: float = 120.0
    threads: int = 0
    seed: int = 0
    any_cpu: bool = False
    cpu_time: bool = False

    def __post_init__(self) -> None:
        default_grid(self.requests, self.blocks, self.contexts)
        if not self.budget_s > 0:
            raise UsageError(f"--budget is {self.budget_s}.", "Give a positive number of seconds.")
        if self.threads < 0:
            raise UsageError(f"--threads is {self.threads}.", "--threads must be at least 0.")
        if self.cpu_time and not (self.on_cpu and self.threads == 1):
            raise UsageError(
                "--cpu-time sees one thread of the CPU only.", "Pass --gpu cpu --threads 1 with it."
            )

    @property
    def on_cpu(self) -> bool:
        return self.gpu.lower() == "cpu"


def profile(
    settings: ProfileSettings,
    on_point: Callable[[int, int, Point], None] = lambda done, total, point: None,
) -> Table:
    """Measure the grid and return it as a cost table.

    Raises:
        MismatchError: another GPU than the one named is in this machine.
        RecGuideError: the model cannot be loaded.
    """
    import torch

    from recguide_core.engine.machine import EmbeddedMachine
    from recguide_core.profiling.host import LOADS, measure_host
    from recguide_core.profiling.measure import Bench

    device = "cpu" if settings.on_cpu else "cuda"
    label = device_label(settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = _load(settings, device)
    points = grid_for(settings, model.config.max_positions)
    seconds = time.thread_time if settings.cpu_time else time.perf_counter
    in_time, host = within(settings.budget_s), NO_HOST
    if settings.on_cpu:
        host = measure_host(model, [n for n in LOADS if n <= max(settings.requests)], seconds)
    bench = Bench(EmbeddedMachine(model), points, seconds)
    timings = time_points(bench, points, in_time, on_point)
    return cost_table(
        points,
        timings,
        provenance(
            settings.model,
            model.hash,
            label,
            SOURCE,
            dtype=str(model.transformer.dtype).removeprefix("torch."),
            attention=f"torch-{device}",
            graph="eager",
            seed=str(settings.seed),
            weights="random" if model.folder is None else "checkpoint",
            threads=str(torch.get_num_threads()),
            timer="processor" if settings.cpu_time else "wall",
            cpu=inventory.cpu_name(),
            driver=torch.version.cuda or "none",
            engine="embedded",
            host_step_ms=f"{host.step:.4f}",
            host_request_ms=f"{host.request:.4f}",
        ),
    )


def grid_for(settings: ProfileSettings, max_positions: int) -> list[Point]:
    """The points that a model's context allows."""
    longest = int((max_positions - MAX_BLOCK) / SPREAD)
    contexts = tuple(c for c in settings.contexts if c <= longest)
    return default_grid(settings.requests, settings.blocks, contexts or (longest,))


def cost_table(
    points: Sequence[Point], timings: Sequence[Sequence[float]], about: Mapping[str, str]
) -> Table:
    """The table of the points that were timed; what the budget cut is not in it."""
    timed = [place for place, times in enumerate(timings) if times]
    columns = columns_of([points[i] for i in timed], [timings[i] for i in timed])
    return make_table("cost", columns, about)


def device_label(settings: ProfileSettings) -> str:
    """Name of the device in the table.

    Raises:
        MismatchError: the CUDA device here is another one than `settings.gpu`.
    """
    if settings.on_cpu:
        return ANY_CPU if settings.any_cpu else f"cpu: {inventory.cpu_name()}"
    found = cuda_name()
    if found is None:
        raise MismatchError(
            f"There is no CUDA device here to measure '{settings.gpu}' on.",
            "Run it where that device is, or profile the CPU: --gpu cpu",
        )
    name = inventory.short_gpu_name(found)
    if settings.gpu.lower() != name:
        raise MismatchError(
            f"This machine has '{found}', not '{settings.gpu}'.",
            f"Name the device that is here: --gpu {name}",
        )
    return name


def cuda_name() -> str | None:
    """Full name of the CUDA device in use, or None."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _load(settings: ProfileSettings, device: str) -> LoadedModel:
    """The model with its weights; published geometry with random weights when there are none."""
    from recguide_core.errors import RecGuideError
    from recguide_core.model.registry import (
        HUB_IDS,
        load_model,
        published_config,
        random_model,
    )

    dtype = settings.dtype or ("float32" if device == "cpu" else "bfloat16")
    if settings.model in HUB_IDS and device == "cuda":
        try:
            return load_model(settings.model, device=device, dtype=dtype)
        except RecGuideError:
            # Time depends on shapes, not on values; the table says which weights it was made with.
            config = published_config(settings.model)
            return random_model(
                settings.model, config, device=device, dtype=dtype, seed=settings.seed
            )
    return load_model(settings.model, device=device, dtype=dtype)


def within(seconds: float) -> Callable[[], bool]:
    """Tells whether less than `seconds` have passed since this call."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began <= seconds


def time_points(
    bench: Any,
    points: Sequence[Point],
    in_time: Callable[[], bool],
    on_point: Callable[[int, int, Point], None],
) -> list[list[float]]:
    """Milliseconds of every point, pass after pass; what the budget cut has fewer or none."""
    timings: list[list[float]] = [[] for _ in points]
    for number in range(PASSES):
        for place, point in enumerate(points):
            if (number or place) and not in_time():
                return timings
            timings[place] += bench.time_ms(point, REPEATS)
            on_point(number * len(points) + place + 1, PASSES * len(points), point)
    return timings


def columns_of(points: Sequence[Point], timings: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Columns of a cost table, one row a point."""
    return {
        "kind": [p.kind for p in points],
        "requests": [p.requests for p in points],
        "query_tokens": [p.query_tokens for p in points],
        "kv_tokens": [int(p.contexts.sum()) for p in points],
        "block_size": [p.block for p in points],
        "branches": [p.requests * p.branches for p in points],
        "mean_ms": [float(np.mean(t)) for t in timings],
        "std_ms": [float(np.std(t)) for t in timings],
        "count": [len(t) for t in timings],
        "origin": ["measured"] * len(points),
    }
