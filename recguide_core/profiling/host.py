"""What the host adds to a step: the engine's own steps, less the forwards within them.

A policy that chooses between many short steps and few long ones has to know it. The engine serves
LinearSS on random prompts; planning a richer method costs more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.readings import Executor, ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import LoadedModel
from recguide_core.policy.host import NO_HOST, HostTime
from recguide_core.records import Request

LOADS = (1, 8, 32)
STEPS = 48
PROMPT, TOKENS, BLOCK = 48, 64, 8
"""Prompt and answer of each request, cut to a short context, and its blocks."""


class TimedExecutor:
    """Another executor, and the seconds that were spent in it."""

    def __init__(self, inner: Executor, seconds: Callable[[], float]) -> None:
        self._inner = inner
        self._now = seconds
        self.seconds = 0.0

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        began = self._now()
        try:
            return self._inner.execute(step, needs)
        finally:
            self.seconds += self._now() - began


def measure_host(
    model: LoadedModel, loads: Sequence[int], seconds: Callable[[], float], steps: int = STEPS
) -> HostTime:
    """Host milliseconds of a step and of each request in it, from medians at these loads.

    Nothing where whole rounds run on the device: there is no host time beside them.

    Args:
        loads: requests at once, one measurement each.
        seconds: the clock.
    """
    found = []
    for load in loads:
        settings = EngineSettings(max_requests=load)
        engine = Engine(model, planners=[make_planner("linear", BLOCK)], settings=settings)
        if engine.resident is not None:
            return NO_HOST
        found.append(_median_ms(engine, load, steps, seconds))
    return fit_loads(loads, found)


def fit_loads(loads: Sequence[int], host_ms: Sequence[float]) -> HostTime:
    """Host time of a step and of each request in it that explain these medians best, both >= 0.

    One load can't tell them apart: all of its time is the step's.
    """
    n, ms = np.array(loads, np.float64), np.array(host_ms)
    if len(n) < 2:
        return HostTime(float(ms[0]), 0.0)
    step, request = np.linalg.lstsq(np.stack([np.ones_like(n), n], axis=1), ms, rcond=None)[0]
    if request < 0:
        return HostTime(float(ms.mean()), 0.0)
    if step < 0:
        return HostTime(0.0, float(n @ ms / (n @ n)))
    return HostTime(float(step), float(request))


def _median_ms(engine: Engine, load: int, steps: int, seconds: Callable[[], float]) -> float:
    """Median host milliseconds of steps in which all `load` requests decode."""
    timed = TimedExecutor(engine.executor, seconds)
    engine.executor = timed
    random = np.random.default_rng(0)
    length = min(PROMPT, max(engine.context // 4, 1))
    prompts = random.integers(0, engine.model.config.vocab, (load, length))
    host: list[float] = []
    while len(host) < steps:
        for index, prompt in enumerate(prompts):
            engine.submit(Request(str(index), prompt, TOKENS, ignore_eos=True))
        while engine.table.decoding.sum() != load and not engine.idle:
            engine.step()
        if engine.idle:
            # The context is so short that the first answers end before the last prompts do.
            return 0.0
        while engine.table.decoding.sum() == load and len(host) < steps:
            before, began = timed.seconds, seconds()
            engine.step()
            host.append(seconds() - began - (timed.seconds - before))
        for index in range(load):
            engine.abort(str(index))
        engine.run()
    return 1e3 * float(np.median(host))
