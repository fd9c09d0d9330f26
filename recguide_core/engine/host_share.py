"""What of a step is not its forward: steps timed beside a second run of their forwards.

A machine's speed changes from second to second, so the two sides of the comparison lie within one
step: its forward runs twice on the same prebuilt tensors, and the step's wall time is what is left
without the second run. That one writes the same K/V into the same slots, behind the committed
prefixes, and changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from recguide_core.engine.engine import Engine
from recguide_core.engine.repetition import Repetition
from recguide_core.metrics import host_share_of
from recguide_core.records import Request

LEAST = 4
"""Steps that are timed in any case: one of each order of the two forwards, twice."""
STEPS, SECONDS = 64, 5.0
"""What a bench run allows: steps behind its window, and as many seconds at most."""


def measure(
    engine: Engine,
    requests: Iterator[Request],
    at_once: int,
    steps: int,
    seconds: float = math.inf,
) -> float | None:
    """1 - (forwards run again on prebuilt tensors) / (wall time of their steps).

    The engine serves requests for this alone and drops what they emit. Nobody observes its rounds
    meanwhile: observers measure a run and are no part of serving one.

    Args:
        requests: are sent while fewer than `at_once` are on their way.
        steps: how many are timed, fewer when the requests run out.
        seconds: after which no further step is timed, `LEAST` aside, once no prompt is left.
            Where steps are long, little of them is the host's, and few show it.

    Returns:
        The share (`metrics.host_share_of`), or None where a step is more than one forward of the
        torch runner (captured graphs, a drafter model), or when the engine is busy.
    """
    runner = engine.runner
    if engine.executor is not runner or engine.resident is not None or not engine.idle:
        return None
    observers, engine.observers = engine.observers, []
    repetition = runner.repetition = Repetition()
    walls: list[float] = []
    forwards: list[float] = []
    live: set[str] = set()
    until = math.inf
    try:
        while len(walls) < steps and (len(walls) < LEAST or time.perf_counter() < until):
            while len(live) < at_once and (request := next(requests, None)) is not None:
                engine.submit(request)
                live.add(request.key)
            if not live:
                break
            if until == math.inf and int(engine.table.decoding.sum()) == len(live):
                until = time.perf_counter() + seconds
            before, began = repetition.seconds, time.perf_counter()
            events = engine.step()
            wall, forward = time.perf_counter() - began, repetition.seconds - before
            live -= {event.key for event in events if event.finished is not None}
            walls.append(wall - forward)
            forwards.append(forward)
    finally:
        runner.repetition = None
        for key in live:
            engine.abort(key)
        engine.run()
        engine.observers = observers
    return host_share_of(walls, forwards)
