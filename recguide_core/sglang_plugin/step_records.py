"""What goes into a step of the production engine and what comes out. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from recguide_core.engine.settle import Verified
from recguide_core.records import MAX_BLOCK, IntArray, Outcome, Plan, Sampling, Source

STRIDE = MAX_BLOCK
"""Tokens that one request can emit in one step; the width of the result grid."""
GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A piece of a request's context that SGLang wants in the cache.

    Attributes:
        key: the request; `row`: its line in SGLang's row table.
        first: tokens of it that are cached already; tokens: the piece, int64 [n].
        last: the context ends here, so the next token is wanted.
        remaining: tokens that the request may still emit.
        planner: index of the planner that serves it; block: B it insists on, 0 = the planner's.
    """

    key: str
    row: int
    first: int
    tokens: IntArray
    last: bool
    remaining: int
    sampling: Sampling = GREEDY
    planner: int = 0
    block: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A decoding request of a step: its row, and what SGLang counts as committed and left."""

    key: str
    row: int
    committed: int
    remaining: int


@dataclass(slots=True)
class StepResult:
    """What a decode step emits, aligned with its turns.

    Attributes:
        tokens: int64 [n, STRIDE]; `counts`: valid ones of each line, 0 for a request that only
            drafted or waited, int64 [n].
        rounds: of each turn the settled round's block, accepted tokens, draft source and the
            forwards that carried the request since its round before, this one included; zeros
            where there was no round, int64 [n, 4].
        faulty: keys of requests whose logits were not finite; they emit nothing.
    """

    tokens: IntArray
    counts: IntArray
    rounds: IntArray
    faulty: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, turns: int) -> StepResult:
        """Of a step in which nobody settles a round."""
        return cls(
            np.zeros((turns, STRIDE), np.int64),
            np.zeros(turns, np.int64),
            np.zeros((turns, 4), np.int64),
        )


@dataclass(slots=True)
class RoundRecord:
    """Settled rounds of a step, for traces and metrics; arrays as in `records.Outcome`."""

    keys: list[str]
    outcome: Outcome
    source: IntArray
    plan: Plan
    verified: Verified


@dataclass(slots=True)
class Tally:
    """Counts since start-up, the raw material of the exported figures.

    Attributes:
        request_forwards: forwards that carried a request's decode rows, summed over requests.
        reused: rounds whose draft came from a branch; `round_tokens`: tokens that rounds emit.
    """

    steps: int = 0
    prefills: int = 0
    query_tokens: int = 0
    rounds: int = 0
    request_forwards: int = 0
    reused: int = 0
    round_tokens: int = 0
    branches: int = 0
    hits: int = 0
    blocks: dict[int, int] = field(default_factory=dict)

    def count_rounds(self, outcome: Outcome, source: IntArray) -> None:
        """Add settled rounds."""
        self.rounds += len(outcome.who)
        self.round_tokens += int((outcome.matched + 1).sum())
        self.reused += int((~np.isin(source, (Source.NONE, Source.DRAFT, Source.DRAFTER))).sum())
        self.hits += int((outcome.hit >= 0).sum())
        for width, count in zip(*np.unique(outcome.width, return_counts=True), strict=True):
            self.blocks[int(width)] = self.blocks.get(int(width), 0) + int(count)
