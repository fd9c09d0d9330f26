"""The card's figures, from rounds and texts. Units: tokens, shares in 0..1. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from recguide_core.tiny.rounds import Round

# Next-interval rows of the paper's Table 1 (NLD-8B, B = 32): A <= 8, 9..16, > 16.
PAPER_TRANSITIONS = ((0.703, 0.181, 0.116), (0.584, 0.224, 0.192), (0.208, 0.125, 0.667))

Requests = Sequence[Sequence[Round]]


def interval(accepted: int) -> int:
    """Return 0 for A <= 8, 1 for 9..16, 2 for A > 16."""
    return 0 if accepted <= 8 else 1 if accepted <= 16 else 2


def flat(requests: Requests) -> list[Round]:
    """Return the rounds of all requests in one list."""
    return [r for rounds in requests for r in rounds]


def tau(requests: Requests) -> float:
    """Emitted tokens per round."""
    return float(np.mean([r.accepted for r in flat(requests)]))


def full_rate(requests: Requests) -> float:
    """Share of rounds in which all B - 1 drafts pass."""
    return float(np.mean([r.full for r in flat(requests)]))


def shares(requests: Requests) -> list[float]:
    """Shares of rounds with A <= 8, 9..16, > 16."""
    kinds = np.array([interval(r.accepted) for r in flat(requests)])
    return [float(np.mean(kinds == k)) for k in range(3)]


def transitions(requests: Requests) -> tuple[list[list[float]], list[int]]:
    """Return P(next interval | interval) inside a request, and the count of each row."""
    counts = np.zeros((3, 3))
    for rounds in requests:
        for before, after in pairwise(rounds):
            counts[interval(before.accepted), interval(after.accepted)] += 1
    total = counts.sum(1)
    matrix: NDArray[np.float64] = counts / np.maximum(total, 1)[:, None]
    return matrix.tolist(), [int(n) for n in total]


def auroc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Probability that a positive scores above a negative, ties one half."""
    order = np.sort(negative)
    below = np.searchsorted(order, positive, "left")
    ties = np.searchsorted(order, positive, "right") - below
    return float(np.mean((below + 0.5 * ties) / len(negative)))


def confidence(requests: Requests) -> dict[str, float]:
    """Confidence and margin of passed against first-rejected drafts (Figure 3), and their AUROC.

    The AUROC is that of a small margin foretelling a rejection.
    """
    rounds = flat(requests)
    passed = np.array([p for r in rounds for p in r.passed])
    passed_margin = np.array([m for r in rounds for m in r.passed_margin])
    rejected = np.array([r.rejected for r in rounds if r.rejected is not None])
    rejected_margin = np.array([r.rejected_margin for r in rounds if r.rejected_margin is not None])
    return {
        "passed": float(passed.mean()),
        "rejected": float(rejected.mean()),
        "passed_margin": float(passed_margin.mean()),
        "rejected_margin": float(rejected_margin.mean()),
        "risky_passed": float(np.mean(passed_margin < 0.5)),
        "risky_rejected": float(np.mean(rejected_margin < 0.5)),
        "auroc": auroc(-rejected_margin, -passed_margin),
    }


def ranks(requests: Requests) -> dict[str, float]:
    """Where the verifier's token stood in the rejected draft: rank 2, rank <= 3, rank <= 5."""
    rank = np.array([r.rank for r in flat(requests) if r.rank is not None])
    return {
        "second": float(np.mean(rank == 2)),
        "third": float(np.mean(rank <= 3)),
        "fifth": float(np.mean(rank <= 5)),
    }


def distinct_share(texts: Sequence[Sequence[int]]) -> float:
    """Mean share of different 4-grams among a text's 4-grams, in tokens."""
    result = []
    for ids in texts:
        grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
        result.append(len(set(grams)) / max(len(grams), 1))
    return float(np.mean(result))


def drafting(by_block: Mapping[int, Requests]) -> dict[str, object]:
    """Return every figure of one prompt set; blocks 16 and 32 must be among the keys."""
    matrix, rows = transitions(by_block[32])
    return {
        "tau": {str(B): tau(r) for B, r in by_block.items()},
        "full": {str(B): full_rate(r) for B, r in by_block.items()},
        "shares_32": shares(by_block[32]),
        "transitions_32": matrix,
        "transition_rows": rows,
        "confidence_16": confidence(by_block[16]),
        "ranks_16": ranks(by_block[16]),
        "rounds_16": len(flat(by_block[16])),
    }
