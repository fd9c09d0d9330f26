"""Load generators: how requests reach a target, and what is written down of each.

Knows a target only as something that takes requests and steps; not models, files or screens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recguide_core.bench.bits import digests
from recguide_core.bench.rows import RequestRow
from recguide_core.datasets import Prompt
from recguide_core.records import Finish, Finished, IntArray, Request


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
    """A request to send, with the prompt that it came from.

    Attributes:
        tokens: ids of the prompt, int64 [n]; empty where the target takes text.
        arrival_s: recorded moment of arrival, seconds since the first one; None without a trace.
        turn: place in its conversation; `prompt.later` are the questions that follow.
        fault: why it cannot be sent; its row is then a failed one.
    """

    prompt: Prompt
    tokens: IntArray
    max_tokens: int
    arrival_s: float | None = None
    turn: int = 0
    fault: str | None = None


RowSink = Callable[[RequestRow], None]
Follow = Callable[[Job, RequestRow], Job]
"""The next turn of a conversation, given a turn and the row of its answer."""


@dataclass(frozen=True, slots=True)
class Sending:
    """What all requests of a load have in common.

    Attributes:
        cell: key of the cell; `sink` gets each row as its request finishes.
        warmup: the rows are marked and belong to no metric.
        logprobs: alternatives that each token is reported with, or None.
        follow: makes the next turn of a conversation; it is sent when the turn before has ended.
    """

    cell: str
    sink: RowSink
    warmup: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    follow: Follow | None = None


class Cooldown:
    """Requests that hold the load up while the last measured ones end; in no metric.

    They are handed over behind the measured ones, as slots fall free or at the pace of the
    arrivals. The window closes with the last measured request; `drain` ends what is then left.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = deque(enumerate(jobs))
        self._flight: _Flight | None = None

    def join(self, flight: _Flight) -> None:
        self._flight = flight

    def drain(self) -> list[RequestRow]:
        """Finish those on their way; the rows of all that were sent."""
        if self._flight is None:
            return []
        while self._flight.live:
            self._flight.step()
        return self._flight.rows(cooldown=True)


class _Flight:
    """The requests on their way, and the rows of those that are done."""

    def __init__(self, target: Target, sending: Sending, cooldown: Cooldown | None) -> None:
        self.target, self.sending = target, sending
        self.opened = target.now()
        self.live: dict[str, tuple[Job, RequestRow]] = {}
        self.done: list[RequestRow] = []
        self.measured = 0
        """Requests in flight that count: all but the cool-down's."""
        self.filler: deque[tuple[int, Job]] = deque()
        if cooldown is not None:
            self.filler = cooldown.jobs
            cooldown.join(self)

    def now(self) -> float:
        return self.target.now() - self.opened

    def send(self, index: int, job: Job, arrival: float, *, cooldown: bool = False) -> None:
        row = _row(self.sending, index, job, arrival, cooldown)
        if job.fault is not None:
            row.finish, row.error, row.end_s = str(Finish.ERROR), job.fault, arrival
            self._close(row)
            return
        self.live[row.key] = (job, row)
        self.measured += not cooldown
        request = Request(
            row.key,
            job.tokens,
            job.max_tokens,
            ignore_eos=self.sending.ignore_eos,
            logprobs=self.sending.logprobs,
        )
        self.target.submit(request, job)

    def fill(self, arrival: float) -> None:
        """Hand over the next request of the cool-down."""
        self.send(*self.filler.popleft(), arrival, cooldown=True)

    def step(self) -> None:
        for event in self.target.step():
            job, row = self.live[event.key]
            _take(row, event, self.now())
            if event.finished is not None:
                del self.live[event.key]
                self.measured -= not row.cooldown
                self._close(row)
                self._go_on(job, row)

    def _close(self, row: RequestRow) -> None:
        self.done.append(row)
        self.sending.sink(row)

    def _go_on(self, job: Job, row: RequestRow) -> None:
        """The next turn, where there is one and this one ended well."""
        if self.sending.follow is not None and row.ok and job.prompt.later:
            following = self.sending.follow(job, row)
            self.send(row.index, following, self.now())

    def rows(self, *, cooldown: bool = False) -> list[RequestRow]:
        found = [row for row in self.done if row.cooldown == cooldown]
        return sorted(found, key=lambda row: (row.index, row.turn))


def closed_loop(
    target: Target,
    jobs: Sequence[Job],
    in_flight: int | Callable[[int], int],
    sending: Sending,
    cooldown: Cooldown | None = None,
) -> list[RequestRow]:
    """Keep requests in flight until all jobs are done; a slot that falls free is filled at once.

    A conversation holds its slot until its last turn has ended.

    Args:
        in_flight: how many; or a function of the number handed over so far.

    Returns:
        Rows in the order of the jobs; times count from this call.
    """
    wanted = in_flight if callable(in_flight) else lambda started: in_flight
    flight = _Flight(target, sending, cooldown)
    waiting = deque(enumerate(jobs))
    while waiting or flight.measured:
        room = wanted(len(jobs) - len(waiting)) - len(flight.live)
        if waiting and room > 0:
            flight.send(*waiting.popleft(), flight.now())
        elif flight.filler and not waiting and room > 0:
            flight.fill(flight.now())
        else:
            flight.step()
    return flight.rows()


def open_loop(
    target: Target,
    jobs: Sequence[Job],
    moments: Sequence[float],
    sending: Sending,
    cooldown: Cooldown | None = None,
) -> list[RequestRow]:
    """Hand jobs over at given moments (seconds, ascending), however busy the target is.

    A request's arrival is its moment, so time that it spends before the target looks up counts
    as its latency. A cool-down goes on at the mean pace of the moments.
    """
    flight = _Flight(target, sending, cooldown)
    waiting = deque(zip(range(len(jobs)), jobs, moments, strict=True))
    pace = moments[-1] / max(len(moments) - 1, 1) if len(moments) else 0.0
    following = moments[-1] + pace if len(moments) else 0.0
    while waiting or flight.measured:
        if not flight.live:
            target.wait_until(flight.opened + waiting[0][2])
        while waiting and waiting[0][2] <= flight.now():
            flight.send(*waiting.popleft())
        while flight.filler and not waiting and following <= flight.now():
            flight.fill(following)
            following += pace
        flight.step()
    return flight.rows()


def _row(sending: Sending, index: int, job: Job, arrival: float, cooldown: bool) -> RequestRow:
    prompt = job.prompt
    return RequestRow(
        cell=sending.cell,
        index=index,
        prompt_id=prompt.id,
        prompt_hash=prompt.hash,
        dataset=prompt.dataset,
        category=prompt.category,
        prompt_tokens=len(job.tokens),
        max_tokens=job.max_tokens,
        arrival_s=arrival,
        warmup=sending.warmup,
        cooldown=cooldown,
        turn=job.turn,
        prompt=[int(token) for token in job.tokens],
    )


def _take(row: RequestRow, event: TokenEvent, now: float) -> None:
    """Writes an event down; tokens are counted when they become known to the caller."""
    if len(event.tokens):
        row.first_s = now if row.first_s is None else row.first_s
        row.chunk_s.append(now)
        row.chunk_tokens.append(len(event.tokens))
        row.answer += getattr(event, "text", "")
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
    row.bits = digests(finished)
    row.origins = [int(o) for o in finished.origins]
