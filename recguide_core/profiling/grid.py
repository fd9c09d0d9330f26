"""Which forwards are timed, most important first. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide_core.errors import UsageError
from recguide_core.records import MAX_BLOCK, IntArray

BLOCKS = (4, 8, 16, 32)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 512)
"""Committed tokens per request; two of them show what a KV token costs."""
PROMPTS = (64, 256, 512)
BRANCHED = ((8, 1), (8, 3), (16, 1), (16, 2), (16, 3), (32, 1), (32, 3))
"""(B, branches) of the fused forwards, each branch of the same B."""
SPREAD = 1.5
"""Longest prefix of a forward over the mean one; the shortest is as far below."""


@dataclass(frozen=True, slots=True)
class Point:
    """One forward to be timed: `requests` requests, each with one row of `block` tokens.

    Attributes:
        kind: prefill | ar | draft | verify | fused | mixed (drafts and verifications in turn).
        context: committed tokens of a request, on average.
        branches: branch rows of each request, of `block` tokens too (fused).
    """

    kind: str
    requests: int
    block: int
    context: int
    branches: int = 0

    @property
    def query_tokens(self) -> int:
        return self.requests * self.block * (1 + self.branches)

    @property
    def contexts(self) -> IntArray:
        """Committed tokens of each request, int64 [requests].

        Requests that are served together have prefixes of many lengths, and equal ones would be
        attended in a way that serving seldom meets.
        """
        if self.requests == 1:
            return np.full(1, self.context, np.int64)
        reach = (SPREAD - 1.0) * self.context
        places = np.rint(np.linspace(-reach, reach, self.requests)).astype(np.int64)
        # In no order, as no load arrives sorted.
        return self.context + np.random.default_rng(0).permutation(places)

    @property
    def name(self) -> str:
        """For progress bars."""
        return f"{self.kind}, {self.requests} requests, B = {self.block}"


def check_grid(requests: Sequence[int], blocks: Sequence[int], contexts: Sequence[int]) -> None:
    """Raises UsageError for a grid that cannot be measured."""
    for name, values, low, high in (
        ("--requests", requests, 1, 4096),
        ("--block-size", blocks, 2, MAX_BLOCK),
        ("--context", contexts, 1, 2**20),
    ):
        if not values:
            raise UsageError(f"{name} is empty.", "Name at least one value.")
        for value in values:
            if not low <= value <= high:
                raise UsageError(
                    f"{name} has {value}, outside {low}..{high}.", f"Choose from {low} to {high}."
                )


def default_grid(
    requests: Sequence[int] = REQUESTS,
    blocks: Sequence[int] = BLOCKS,
    contexts: Sequence[int] = CONTEXTS,
) -> list[Point]:
    """Points over the grid, most important first.

    AR, draft, verify and mixed at the first context over all loads; then fused forwards; then
    prompts; then the other contexts. A budget that runs out cuts the end.
    """
    check_grid(requests, blocks, contexts)
    first, others = contexts[0], contexts[1:]
    serial = [point for n in requests for point in _serial(n, blocks, first)]
    fused = [
        Point("fused", n, block, first, branches)
        for n in requests
        for block, branches in BRANCHED
        if block in blocks
    ]
    prompts = [Point("prefill", 1, length, 0) for length in PROMPTS]
    rest = [point for context in others for n in requests for point in _serial(n, blocks, context)]
    return [*serial, *prompts, *fused, *rest]


def _serial(requests: int, blocks: Sequence[int], context: int) -> list[Point]:
    """The forwards of AR and of serial draft-verify at one load."""
    points = [Point("ar", requests, 1, context)]
    for block in blocks:
        points.append(Point("draft", requests, block, context))
        points.append(Point("verify", requests, block, context))
        if requests > 1:
            points.append(Point("mixed", requests, block, context))
    return points
