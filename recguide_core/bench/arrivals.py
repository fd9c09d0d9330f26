"""When requests come: a fixed number in flight, a number that changes, or points in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.errors import UsageError, nearest

ARRIVALS = ("poisson", "constant")


@dataclass(frozen=True, slots=True)
class Ramp:
    """Levels of concurrency that a closed loop passes through, e.g. 1 -> 32 -> 1.

    The n requests of a run are split evenly over the stretches between levels; within a stretch the
    number in flight changes linearly with the requests that were started.
    """

    levels: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.levels)

    def in_flight(self, started: int, total: int) -> int:
        """Requests to keep in flight when `started` of `total` have been handed over."""
        place = started / max(total - 1, 1) * (len(self.levels) - 1)
        return max(1, round(float(np.interp(place, range(len(self.levels)), self.levels))))

    def __str__(self) -> str:
        return ":".join(map(str, self.levels))


def parse_ramp(text: str) -> Ramp:
    """A ramp written as `1:32:1`.

    Raises:
        UsageError: fewer than two levels, or one that is no positive whole number.
    """
    try:
        levels = tuple(int(part) for part in text.split(":"))
    except ValueError:
        levels = ()
    if len(levels) < 2 or min(levels) < 1:
        raise UsageError(
            f"--ramp is '{text}', which is no list of levels.", "Write it like: --ramp 1:32:1"
        )
    return Ramp(levels)


def check_rates(rates: Sequence[float], arrivals: str) -> None:
    """Raises UsageError for rates that cannot be, or an unknown way to arrive."""
    if arrivals not in ARRIVALS:
        raise UsageError(f"No arrivals named '{arrivals}'.", nearest(arrivals, ARRIVALS))
    for rate in rates:
        if not 0 < rate < float("inf"):
            raise UsageError(f"--rate has {rate:g}.", "Give requests per second above 0.")


def check_speeds(speeds: Sequence[float]) -> None:
    """Raises UsageError for a factor by which no trace can be replayed."""
    if not speeds:
        raise UsageError("--speed is empty.", "Name at least one factor, such as 1.")
    for speed in speeds:
        if not 0 < speed < float("inf"):
            raise UsageError(
                f"--speed has {speed:g}.", "Give a factor above 0; 2 is twice as fast."
            )


def schedule(count: int, rate: float, arrivals: str, seed: int) -> npt.NDArray[np.float64]:
    """Seconds at which `count` requests come, ascending, the first at 0.

    `constant` spaces them by 1 / rate; `poisson` draws the gaps from an exponential law.
    """
    if arrivals == "constant":
        return np.arange(count) / rate
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count - 1)
    return np.concatenate(([0.0], np.cumsum(gaps)))
