"""One engine run for a suite: closed loop, virtual time, every round written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recguide_core.bench.load import Job
from recguide_core.engine.clock import Clock
from recguide_core.engine.events import Observer
from recguide_core.engine.planners import Planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.records import MAX_BLOCK, Request

if TYPE_CHECKING:
    from recguide_core.model.registry import LoadedModel


@dataclass(slots=True)
class RequestRounds:
    """Rounds of one request: B, A and draft source of each, and its output."""

    group: str
    category: str
    block: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    forwards: int = 0
    round_tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Drive:
    """A finished run: its requests by key, and the clock's seconds for all of it."""

    requests: dict[str, RequestRounds]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(r.tokens) for r in self.requests.values())

    @property
    def tps(self) -> float:
        """Output tokens per second of the run's clock."""
        return self.tokens / self.seconds if self.seconds else float("nan")

    def tau(self, group: str | None = None) -> float:
        """Tokens per two forwards, over rounds (no prefill), of one group or all."""
        chosen = [r for r in self.requests.values() if group in (None, r.group)]
        forwards = sum(r.forwards for r in chosen)
        return 2.0 * sum(r.round_tokens for r in chosen) / forwards if forwards else float("nan")

    def group_tps(self, group: str) -> float:
        """Tokens per second of the group's requests while they were alive (C = 1: their own)."""
        chosen = [r for r in self.requests.values() if r.group == group]
        seconds = sum(r.seconds for r in chosen)
        return sum(len(r.tokens) for r in chosen) / seconds if seconds else float("nan")


def drive(
    model: LoadedModel,
    planner: Planner,
    jobs: Sequence[Job],
    concurrency: int,
    clock: Clock,
    *,
    in_flight: int | None = None,
    batching: str = "ragged",
    observers: Sequence[Observer] = (),
    entropy_positions: int = MAX_BLOCK,
) -> Drive:
    """Serve `jobs` with `in_flight` of them (default C) present at any time.

    Args:
        in_flight: more than C leaves requests waiting, so that buckets can fill.
    """
    from recguide_core.engine.engine import Engine

    present = in_flight or concurrency
    settings = EngineSettings(
        max_requests=concurrency,
        max_admitted=present,
        batching=batching,
        entropy_positions=entropy_positions,
    )
    engine = Engine(model, planners=[planner], settings=settings, clock=clock)
    engine.observers += observers
    run = Drive({}, 0.0)
    began = clock.now()
    births: dict[str, float] = {}
    waiting = list(enumerate(jobs))[::-1]
    while waiting or not engine.idle:
        while waiting and len(births) < present:
            index, job = waiting.pop()
            key = str(index)
            run.requests[key] = RequestRounds(job.prompt.dataset, job.prompt.category)
            births[key] = clock.now()
            engine.submit(Request(key, job.tokens, job.max_tokens))
        for event in engine.step():
            record = run.requests[event.key]
            if event.block:
                record.block.append(event.block)
                record.accepted.append(event.accepted)
                record.source.append(event.source)
            if event.finished is not None:
                done = event.finished
                record.tokens = done.tokens.tolist()
                record.forwards, record.round_tokens = done.forwards, done.round_tokens
                record.seconds = clock.now() - births.pop(event.key)
    run.seconds = clock.now() - began
    return run
