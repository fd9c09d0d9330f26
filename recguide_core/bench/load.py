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

    def submit(self, request: Request) -> None:
        """Take a request; its tokens come from later steps."""

    def step(self) -> Iterable[TokenEvent]:
        """Go on until something happened, at least one step."""

    def now(self) -> float:
        """Seconds on the target's clock."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request to send, with the prompt that it came from."""

    prompt: Prompt
    tokens: IntArray
    max_tokens: int


RowSink = Callable[[RequestRow], None]


def closed_loop(
    target: Target,
    cell: str,
    jobs: Sequence[Job],
    concurrency: int,
    *,
    sink: RowSink,
    warmup: bool = False,
    ignore_eos: bool = False,
    planner: int = 0,
) -> list[RequestRow]:
    """Keep `concurrency` requests in flight until all jobs are done.

    A slot that falls free is filled at once. `sink` gets each row as its request finishes;
    the rows come back in the order of the jobs. Times count from this call.
    """
    opened = target.now()
    waiting = deque(enumerate(jobs))
    live: dict[str, RequestRow] = {}
    done: list[RequestRow] = []
    while waiting or live:
        while waiting and len(live) < concurrency:
            index, job = waiting.popleft()
            row = _row(cell, index, job, target.now() - opened, warmup)
            live[row.key] = row
            target.submit(
                Request(row.key, job.tokens, job.max_tokens, ignore_eos=ignore_eos, planner=planner)
            )
        for event in target.step():
            row = live[event.key]
            _take(row, event, target.now() - opened)
            if event.finished is not None:
                done.append(live.pop(event.key))
                sink(row)
    return sorted(done, key=lambda row: row.index)


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
    row.origins = [int(o) for o in finished.origins]
