"""Forwards that run twice, so that a step can be compared with its forward alone. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable

from recguide_core.engine.readings import StepReadings


class Repetition:
    """Runs forwards twice and keeps how long the repetition took.

    Whichever comes second finds its weights in the caches, so the order changes, by the
    Thue-Morse sequence: a method's own alternation of drafts and verifies cannot run along with it.

    Attributes:
        seconds: of all repetitions so far; `count`: how many.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0

    def __call__(self, run: Callable[[], StepReadings], again: Callable[[], None]) -> StepReadings:
        """The result of `run`, with `again` before or behind it."""
        readings = None if self.count.bit_count() % 2 else run()
        began = time.perf_counter()
        again()
        self.seconds += time.perf_counter() - began
        self.count += 1
        return run() if readings is None else readings
