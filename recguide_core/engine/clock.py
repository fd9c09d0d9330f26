"""Time of a run: the wall's, or charged from a cost table.

The engine asks a clock for `now()` and tells it the shape of every step; nothing else in the
engine knows which of the two it runs on.
"""

from __future__ import annotations

import time
from typing import Protocol

from recguide_core.records import StepShape


class Clock(Protocol):
    """Source of time in seconds."""

    name: str

    def now(self) -> float:
        """Seconds since some fixed moment; never runs backwards."""

    def charge(self, shape: StepShape) -> None:
        """One step of this shape has just been run."""

    def wait_until(self, moment: float) -> None:
        """Nothing can be done before `moment`: let time pass."""


class WallClock:
    """Real time; charging is a no-op because the step itself took it."""

    name = "wall"

    def now(self) -> float:
        return time.perf_counter()

    def charge(self, shape: StepShape) -> None:
        del shape

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.perf_counter()))
