"""One answer on its way: what the engine thread writes and a client's coroutine reads."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from recguide_core import metrics
from recguide_core.engine.events import Event
from recguide_core.errors import RecGuideError
from recguide_core.records import Finished, Request, Source
from recguide_core.serving.streaming import TextStream

REUSED = frozenset({Source.CORRECTION, Source.CONTINUATION, Source.POSITION})
"""Drafts that a branch of the round before had prepared."""


@dataclass(slots=True)
class Piece:
    """What one step brought to an answer.

    Attributes:
        text: characters that may be shown now; it can be empty.
        event: the engine's event, None for an error that came before any.
        offset: tokens of the answer before this piece.
        branches: branch rows of the round as (kind, position, block).
        at: seconds of the process clock.
        error: the answer ends here without a result.
    """

    text: str
    at: float
    event: Event | None = None
    offset: int = 0
    branches: list[tuple[int, int, int]] = field(default_factory=list)
    error: RecGuideError | None = None

    @property
    def finished(self) -> Finished | None:
        return self.event.finished if self.event is not None else None

    @property
    def last(self) -> bool:
        return self.error is not None or self.finished is not None


@dataclass(slots=True)
class RoundStats:
    """How the rounds of an answer went."""

    blocks: Counter[int] = field(default_factory=Counter)
    sources: Counter[int] = field(default_factory=Counter)
    rounds: int = 0
    matched: int = 0
    drafted: int = 0

    def add(self, event: Event) -> None:
        """Count a round; the prefill's token is none."""
        if not event.block:
            return
        self.rounds += 1
        self.blocks[event.block] += 1
        self.sources[event.source] += 1
        self.matched += event.accepted - 1
        self.drafted += event.block - 1


@dataclass(eq=False, slots=True)
class Generation:
    """An answer: its request, its text, its times and the pieces not read yet.

    Attributes:
        index: number of the choice; method: name of the method that serves it.
        detailed: note the branches of each round (the playground shows them).
        inbox: where its pieces go; the answers of one request share it.
        sent: tokens handed to the reader; `chunk_at`: when the newest came.
        first, end: seconds of the process clock, None before.
    """

    request: Request
    index: int
    method: str
    block: int
    text: TextStream
    arrival: float
    detailed: bool = False
    stats: RoundStats = field(default_factory=RoundStats)
    sent: int = 0
    first: float | None = None
    chunk_at: float | None = None
    end: float | None = None
    finished: Finished | None = None
    inbox: asyncio.Queue[tuple[Generation, Piece]] = field(default_factory=asyncio.Queue)
    accepted: asyncio.Future[None] | None = None

    @property
    def key(self) -> str:
        return self.request.key

    def speculation(self) -> dict[str, Any]:
        """The `speculation` part of usage."""
        done = self.finished
        assert done is not None
        reused = {
            "correction": self.stats.sources[Source.CORRECTION],
            "continuation": self.stats.sources[Source.CONTINUATION],
            "position": self.stats.sources[Source.POSITION],
        }
        return {
            "method": self.method,
            "rounds": done.rounds,
            "forwards": done.forwards,
            "round_tokens": done.round_tokens,
            "tau": metrics.tau(done.round_tokens, done.forwards),
            "tokens_per_forward": metrics.tpf(done.round_tokens, done.forwards),
            "accepted_length": metrics.accepted_length(done.round_tokens, done.rounds),
            "blocks": {str(b): n for b, n in sorted(self.stats.blocks.items())},
            "branch_hits": sum(reused.values()),
            "branch_hits_by_kind": reused,
        }
