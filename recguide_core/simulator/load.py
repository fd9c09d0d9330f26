"""How requests reach a simulation, and what is written down of each: closed loop or arrivals."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.errors import UsageError
from recguide_core.simulator.core import SimulatedCore, Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each of n requests came, started, spoke and ended, seconds on the run's clock.

    Attributes:
        arrival, first, end: handed over, first token, last token, float64 [n].
        tokens: emitted, `rounds`, `forwards`, `reused`, `round_tokens`: as in `Finished`, [n].
        full_from, full_to: while every slot was taken and more requests waited.
        full_tokens: tokens emitted in that time.
        steps: forwards; `seconds`: of the whole run.
    """

    arrival: Floats
    first: Floats
    end: Floats
    tokens: npt.NDArray[np.int64]
    rounds: npt.NDArray[np.int64]
    forwards: npt.NDArray[np.int64]
    reused: npt.NDArray[np.int64]
    round_tokens: npt.NDArray[np.int64]
    full_from: float
    full_to: float
    full_tokens: int
    steps: int
    seconds: float

    @property
    def tps(self) -> float:
        """Tokens per second of the whole run."""
        return float(self.tokens.sum() / self.seconds)

    @property
    def steady_tps(self) -> float:
        """Tokens per second while all slots were taken; NaN where that never was."""
        span = self.full_to - self.full_from
        return self.full_tokens / span if span > 0 else float("nan")

    @property
    def user_tps(self) -> float:
        """Mean over requests of tokens per second of residence."""
        return float(np.mean(self.tokens / (self.end - self.arrival)))

    @property
    def tau(self) -> float:
        """Tokens of rounds per two forwards."""
        return float(2.0 * self.round_tokens.sum() / max(int(self.forwards.sum()), 1))

    @property
    def reuse(self) -> float:
        """h: rounds whose draft came from a branch / rounds."""
        return float(self.reused.sum() / max(int(self.rounds.sum()), 1))


class _Log:
    """Collects a timeline while a run goes on."""

    def __init__(self, count: int) -> None:
        self.times = np.full((3, count), np.nan)
        self.counts = np.zeros((5, count), np.int64)
        self.full_from = self.full_to = np.nan
        self.full_tokens = 0

    def arrived(self, index: int, moment: float) -> None:
        self.times[0, index] = moment

    def step(self, core: SimulatedCore, full: bool) -> int:
        """Run a step; the number of requests that ended in it."""
        before = core.clock.now()
        events = core.step()
        now, ended, tokens = core.clock.now(), 0, 0
        for event in events:
            index = int(event.key)
            tokens += len(event.tokens)
            if np.isnan(self.times[1, index]) and event.tokens:
                self.times[1, index] = now
            if event.finished is not None:
                done = event.finished
                ended += 1
                self.times[2, index] = now
                self.counts[:, index] = (
                    len(done.tokens),
                    done.rounds,
                    done.forwards,
                    done.reused,
                    done.round_tokens,
                )
        if full:
            self.full_from = before if np.isnan(self.full_from) else self.full_from
            self.full_to = now
            self.full_tokens += tokens
        return ended

    def timeline(self, core: SimulatedCore) -> Timeline:
        arrival, first, end = self.times
        tokens, rounds, forwards, reused, round_tokens = self.counts
        return Timeline(
            arrival,
            first,
            end,
            tokens,
            rounds,
            forwards,
            reused,
            round_tokens,
            full_from=float(self.full_from),
            full_to=float(self.full_to),
            full_tokens=self.full_tokens,
            steps=core.counters.steps,
            seconds=core.clock.now(),
        )


def run_closed(core: SimulatedCore, workload: Workload, concurrency: int) -> Timeline:
    """Keep `concurrency` requests in the engine until all are done.

    Args:
        concurrency: may exceed the engine's batch, so that buckets fill (more requests waiting).
    """
    log, waiting, live = _Log(len(workload)), deque(range(len(workload))), 0
    while waiting or live:
        while waiting and live < concurrency:
            index = waiting.popleft()
            log.arrived(index, core.clock.now())
            core.submit(workload.request(index))
            live += 1
        live -= log.step(core, full=bool(waiting) and live == concurrency)
    return log.timeline(core)


def run_arrivals(core: SimulatedCore, workload: Workload, arrivals: Floats) -> Timeline:
    """Hand requests over at the given moments (seconds, ascending) and run until all are done.

    Raises:
        UsageError: there is not one moment for each request, or they go backwards.
    """
    if len(arrivals) != len(workload) or (np.diff(arrivals) < 0).any():
        raise UsageError(
            "Arrival times must be ascending, one for each request.", "Sort and count them."
        )
    log, next_one, live = _Log(len(workload)), 0, 0
    while next_one < len(workload) or live:
        if not live:
            core.clock.wait_until(float(arrivals[next_one]))
        while next_one < len(workload) and arrivals[next_one] <= core.clock.now():
            log.arrived(next_one, float(arrivals[next_one]))
            core.submit(workload.request(next_one))
            next_one, live = next_one + 1, live + 1
        core.horizon = float(arrivals[next_one]) if next_one < len(workload) else float("inf")
        live -= log.step(core, full=False)
    return log.timeline(core)


def poisson_arrivals(rate: float, count: int, seed: int) -> Floats:
    """Moments of a Poisson stream of `rate` requests a second, float64 [count].

    Raises:
        UsageError: the rate is not positive.
    """
    if not rate > 0:
        raise UsageError(f"A rate of {rate} requests a second is none.", "Give a rate above 0.")
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))


def ramp_arrivals(low: float, high: float, count: int, seed: int) -> Floats:
    """A Poisson stream whose rate rises from `low` to `high` at the middle request and falls back.

    Raises:
        UsageError: a rate is not positive.
    """
    if not min(low, high) > 0:
        raise UsageError(f"Rates {low} to {high} are not all above 0.", "Give rates above 0.")
    middle = 1.0 - np.abs(np.linspace(-1.0, 1.0, count))
    rate = low + (high - low) * middle
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate))
