"""Load generators: how requests reach a target, and what is written down of each.

Knows a target only as something that takes requests and steps; not models, files or screens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recguide_core.bench.rows import RequestRow
from recguide_core.datasets import Prompt
from recguide_core.records import Finished, IntArray, Request


class TokenEvent(Protocol):
    """Tokens of one request that a step brought; `finished` is set with its last ones.

    `block` and `accepted` are B and A of the round that gave them, 0 where there was none or a
    server does not tell; `source` says where the round's draft came from (records.Source).
    """

    @property
    def key(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def block(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def finished(self) -> Finished | None: ...


class Target(Protocol):
    """Something that serves requests: the embedded engine, a server, a simulator."""

    def submit(self, request: Request, job: Job) -> None:
        """Take a request, made from a job; its tokens come from later steps."""

    def step(self) -> Iterable[TokenEvent]:
        """Go on until something happened, at least one step."""

    def now(self) -> float:
        """Seconds on the target's clock."""

    def wait_until(self, moment: float) -> None:
        """Let time pass: nothing is in flight before `moment`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request to send, with the prompt that it came from."""

    prompt: Prompt
    tokens: IntArray
    max_tokens: int


RowSink = Callable[[RequestRow], None]


@dataclass(frozen=True, slots=True)
class Sending:
    """What all requests of a load have in common.

    Attributes:
        cell: key of the cell; `sink` gets each row as its request finishes.
        warmup: the rows are marked and belong to no metric.
    """

    cell: str
    sink: RowSink
    warmup: bool = False
    ignore_eos: bool = False


class _Flight:
    """The requests on their way, and the rows of those that are done."""

    def __init__(self, target: Target, sending: Sending) -> None:
        self.target, self.sending = target, sending
        self.opened = target.now()
        self.live: dict[str, RequestRow] = {}
        self.done: list[RequestRow] = []

    def now(self) -> float:
        return self.target.now() - self.opened

    def send(self, index: int, job: Job, arrival: float) -> None:
        row = _row(self.sending.cell, index, job, arrival, self.sending.warmup)
        self.live[row.key] = row
        ignore = self.sending.ignore_eos
        request = Request(row.key, job.tokens, job.max_tokens, ignore_eos=ignore)
        self.target.submit(request, job)

    def step(self) -> None:
        for event in self.target.step():
            row = self.live[event.key]
            _take(row, event, self.now())
            if event.finished is not None:
                self.done.append(self.live.pop(event.key))
                self.sending.sink(row)

    def rows(self) -> list[RequestRow]:
        return sorted(self.done, key=lambda row: row.index)


def closed_loop(
    target: Target,
    jobs: Sequence[Job],
    in_flight: int | Callable[[int], int],
    sending: Sending,
) -> list[RequestRow]:
    """Keep requests in flight until all jobs are done; a slot that falls free is filled at once.

    Args:
        in_flight: how many; or a function of the number handed over so far.

    Returns:
        Rows in the order of the jobs; times count from this call.
    """
    wanted = in_flight if callable(in_flight) else lambda started: in_flight
    flight = _Flight(target, sending)
    waiting = deque(enumerate(jobs))
    while waiting or flight.live:
        while waiting and len(flight.live) < wanted(len(jobs) - len(waiting)):
            index, job = waiting.popleft()
            flight.send(index, job, flight.now())
        flight.step()
    return flight.rows()


def open_loop(
    target: Target, jobs: Sequence[Job], moments: Sequence[float], sending: Sending
) -> list[RequestRow]:
    """Hand jobs over at given moments (seconds, ascending), however busy the target is.

    A request's arrival is its moment, so time that it spends before the target looks up counts
    as its latency.
    """
    flight = _Flight(target, sending)
    waiting = deque(zip(range(len(jobs)), jobs, moments, strict=True))
    while waiting or flight.live:
        if not flight.live:
            target.wait_until(flight.opened + waiting[0][2])
        while waiting and waiting[0][2] <= flight.now():
            flight.send(*waiting.popleft())
        flight.step()
    return flight.rows()


def _row(cell: str, index: int, job: Job, arrival: float, warmup: bool) -> RequestRow:
    prompt = job.prompt
    return RequestRow(
        cell=cell,
        index=index,
        prompt_id=prompt.id,
        prompt_hash=prompt.hash,
        dataset=prompt.dataset,
        category=prompt.category,
        prompt_tokens=len(job.tokens),
        max_tokens=job.max_tokens,
        arrival_s=arrival,
        warmup=warmup,
        prompt=[int(token) for token in job.tokens],
    )


def _take(row: RequestRow, event: TokenEvent, now: float) -> None:
    """Writes an event down; tokens are counted when they become known to the caller."""
    if len(event.tokens):
        row.first_s = now if row.first_s is None else row.first_s
        row.chunk_s.append(now)
        row.chunk_tokens.append(len(event.tokens))
    if event.block:
        row.round_block.append(event.block)
        row.round_accepted.append(event.accepted)
        row.round_source.append(event.source)
    finished = event.finished
    if finished is None:
        return
    row.end_s = now
    row.finish, row.error = str(finished.finish), finished.error
    row.rounds, row.forwards = finished.rounds, finished.forwards
    row.reused, row.round_tokens = finished.reused, finished.round_tokens
    row.tokens = [int(t) for t in finished.tokens]
    usage = getattr(event, "usage", None)
    if usage is not None:
        # A server: its counts, or the chunks where it gives none.
        row.token_count = int(usage.get("completion_tokens") or sum(row.chunk_tokens))
        row.prompt_tokens = int(usage.get("prompt_tokens") or 0)
    row.origins = [int(o) for o in finished.origins]
