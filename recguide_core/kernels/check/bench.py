"""The bench of a device check: the device, its clock, the budget and the records."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from recguide_core.kernels import cuda
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.ops import Geometry, RoundOps
from recguide_core.kernels.planned_rounds import Decide
from recguide_core.model.transformer import Transformer

Policy: TypeAlias = "Callable[[Bench, int, int], Decide]"
EnginePart: TypeAlias = "Callable[[Bench, Transformer], None]"
INTERPRETED_PROCESSORS = 4
GRAPH_BYTES = 8 << 30


@dataclass(slots=True)
class Bench:
    """State of a check.

    Attributes:
        tiny: CPU dry run through the interpreter.
        budget_s: wall-clock seconds; parts stop adding work when they are spent.
        log: called with each record as it is made.
        policy: (bench, C, context) -> planner of the replayed `recguide`, None for none.
        engine: checks the engine's own loop on a model, None for none.
        records: everything noted; cost: rows of the cost table.
    """

    tiny: bool
    budget_s: float
    log: Callable[[dict[str, Any]], None]
    policy: Policy | None = None
    engine: EnginePart | None = None
    started: float = field(default_factory=time.monotonic)
    records: list[dict[str, Any]] = field(default_factory=list)
    cost: list[dict[str, Any]] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.tiny else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @property
    def processors(self) -> int:
        return INTERPRETED_PROCESSORS if self.tiny else cuda.multiprocessors(self.device)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def spent(self) -> bool:
        return self.elapsed > self.budget_s

    @property
    def failures(self) -> int:
        return sum(r.get("ok") is False for r in self.records)

    def note(self, part: str, **values: Any) -> None:
        """Record one finding."""
        record = {"part": part, "at_s": round(self.elapsed, 2), **values}
        self.records.append(record)
        self.log(record)

    def ops(self, geometry: Geometry, tokens: int, requests: int, rank: int = 0) -> RoundOps:
        """Kernels, in the arithmetic that fits the device."""
        from recguide_core.kernels.ops_triton import TritonRoundOps

        return TritonRoundOps(
            geometry, tokens, requests, self.device, self.processors, exact=self.tiny, rank=rank
        )

    def graphs(self) -> GraphCache:
        """A cache that captures on a GPU and runs eagerly in the dry run."""
        if self.tiny:
            return GraphCache(None, 0, lambda: 0, "dry run on CPU")
        return GraphCache(cuda.CudaCapture(), GRAPH_BYTES, cuda.memory_in_use)

    def synchronize(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize()

    def time_ms(self, run: Callable[[], object], repeats: int = 20) -> tuple[float, float, int]:
        """Mean, standard deviation and count of single runs on the device's clock."""
        if self.tiny:
            repeats = 2
        run()
        self.synchronize()
        samples = [self._one(run) for _ in range(repeats)]
        return statistics.fmean(samples), statistics.stdev(samples), repeats

    def _one(self, run: Callable[[], object]) -> float:
        if self.tiny:
            began = time.perf_counter()
            run()
            return (time.perf_counter() - began) * 1e3
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def captured(self, run: Callable[[], None]) -> Callable[[], None]:
        """`run` as a replayed graph, or itself in the dry run."""
        if self.tiny:
            return run
        maker = cuda.CudaCapture()
        maker.warm(run)
        return maker.capture(run)
