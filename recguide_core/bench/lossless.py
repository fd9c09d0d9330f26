"""Is the text the text of plain autoregressive decoding? Exact, a proven near-tie, or different.

A near-tie is a place where AR itself was undecided: with the agreed prefix replayed under teacher
forcing, both tokens lie within `TIE_GAP` of the best. From there on the texts may part
without either being wrong; what follows is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np

from recguide_core.records import IntArray

TIE_GAP = 1e-4
"""Largest difference of logits (equally of log-probabilities) that counts as undecided."""

BestAfter: TypeAlias = Callable[[IntArray], Mapping[int, float]]
"""Token ids [n] -> log-probabilities of AR's best few next tokens, MASK excluded."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The first difference.

    Attributes:
        position: index in the output.
        expected, got: AR's token and the method's, -1 where that text had already ended.
        gap: best log-probability minus that of the less likely of the two tokens; None where one
            text had ended, or where one token is not among the best few.
    """

    position: int
    expected: int
    got: int
    gap: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one output."""

    kind: str
    evidence: Evidence | None = None

    def record(self) -> dict[str, int | float | None] | None:
        return None if self.evidence is None else asdict(self.evidence)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first differing token (one text ending early counts), or None."""
    shared = min(len(expected), len(got))
    unequal = np.flatnonzero(np.asarray(expected[:shared]) != np.asarray(got[:shared]))
    if unequal.size:
        return int(unequal[0])
    return None if len(expected) == len(got) else shared


def classify(
    prompt: IntArray, expected: Sequence[int], got: Sequence[int], best_after: BestAfter
) -> Verdict:
    """Verdict on one output.

    Args:
        prompt: token ids of the prompt, int64 [n].
        expected, got: AR's output and the method's.
        best_after: AR's best tokens behind a text; called only where the outputs part.
    """
    position = first_difference(expected, got)
    if position is None:
        return Verdict("exact")
    right = int(expected[position]) if position < len(expected) else -1
    other = int(got[position]) if position < len(got) else -1
    if right < 0 or other < 0:
        # Same tokens but another end: no tie of tokens can explain it.
        return Verdict("different", Evidence(position, right, other, None))
    prefix = np.concatenate([prompt, np.asarray(expected[:position], dtype=np.int64)])
    best = best_after(prefix)
    if right not in best or other not in best:
        return Verdict("different", Evidence(position, right, other, None))
    gap = max(best.values()) - min(best[right], best[other])
    kind = "near-tie" if gap < TIE_GAP else "different"
    return Verdict(kind, Evidence(position, right, other, gap))
