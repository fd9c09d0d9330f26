"""What overlap brings on the policy's own states: (h, branch rows) of each block, and at which
loads it pays.

The trace says how often a branch of each block would be the next draft if that block were always
drafted. A policy drafts small blocks where little is certain, and there few branches hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from recguide_core.calibration.recording import Recorded
from recguide_core.engine.events import RoundView
from recguide_core.engine.guidance import Guidance
from recguide_core.records import MAX_BLOCK, Act, IntArray
from recguide_core.tuning.measure import MIDDLE, Runner

PRIOR = 50.0
"""Rounds that the trace's figures count for against the policy's own."""
WORTH = 0.005
"""Gain from which overlap is worth planning for."""
ORDERS = 3
"""Orders of the texts in which that is tried."""

Expected: TypeAlias = Mapping[int, tuple[float, float]]
"""Block -> (h, branch rows of a round), as in `Guidance.overlap`."""


class OverlapSeen:
    """Observer that counts rounds, their branches that hit and branch tokens by the verified block.

    Attributes:
        rounds, hits, tokens: int64 [MAX_BLOCK + 1].
    """

    def __init__(self) -> None:
        self.rounds, self.hits, self.tokens = np.zeros((3, MAX_BLOCK + 1), np.int64)

    def on_rounds(self, view: RoundView) -> None:
        plan, outcome = view.plan, view.outcome
        verify = (plan.act == Act.VERIFY).nonzero()[0]
        block = plan.block.take(verify)
        tokens = np.where(plan.branch_kind >= 0, plan.branch_block, 0).sum(axis=1).take(verify)
        self.rounds += _by(block)
        self.hits += _by(outcome.width, outcome.hit >= 0)
        self.tokens += _by(block, tokens)


def _by(block: IntArray, amount: np.ndarray | None = None) -> IntArray:
    return np.bincount(block, amount, MAX_BLOCK + 1).astype(np.int64)


def expect_overlap(
    runner: Runner, guidance: Guidance, recorded: Recorded, loads: Sequence[int]
) -> Guidance:
    """The guidance with what the policy itself saw at each load.

    Blocks that it seldom drafts keep the trace's figures, and loads in between theirs, scaled by
    what the others saw of theirs.
    """
    expected: dict[int, Expected] = {}
    share: dict[int, float] = {}
    for load in loads:
        seen = OverlapSeen()
        trial = replace(guidance, rho={load: guidance.rho_at(load) * MIDDLE})
        runner.run("recguide", recorded, load, guidance=trial, learning=False, observer=seen)
        before = _at(guidance, load)
        share[load] = _share(before, seen)
        expected[load] = {b: _seen(b, at, share[load], seen) for b, at in before.items()}
    tried = sorted(share)
    logs, shares = np.log(tried), [share[c] for c in tried]
    for load, before in guidance.overlap.items():
        if load not in expected:
            scale = float(np.interp(np.log(load), logs, shares))
            expected[load] = {b: (scale * h, scale * rows) for b, (h, rows) in before.items()}
    return replace(guidance, overlap=expected)


def _at(guidance: Guidance, load: int) -> Expected:
    """What the guidance expects at a load, of the blocks that draft."""
    reuse, rows = guidance.overlap_at(load)
    blocks = guidance.value.menu.tolist()
    return {b: (float(h), float(r)) for b, h, r in zip(blocks, reuse, rows, strict=True) if b > 1}


def _share(before: Expected, seen: OverlapSeen) -> float:
    """Hits over those that were expected, at most 1; 1 where nothing was."""
    hoped = sum(h * int(seen.rounds[b]) for b, (h, _) in before.items())
    got = sum(int(seen.hits[b]) for b in before)
    return min(got / hoped, 1.0) if hoped > 0 else 1.0


def _seen(
    block: int, before: tuple[float, float], share: float, seen: OverlapSeen
) -> tuple[float, float]:
    weight = int(seen.rounds[block]) + PRIOR
    h, rows = (PRIOR * share * x for x in before)
    hits, tokens = int(seen.hits[block]), int(seen.tokens[block])
    return (h + hits) / weight, (rows + tokens / block) / weight


def keep_overlap(
    runner: Runner, guidance: Guidance, recorded: Recorded, loads: Sequence[int]
) -> tuple[Guidance, list[dict[str, Any]]]:
    """The guidance without overlap at the loads where it does not pay, and what was compared.

    Looking for branches is host work in every step, which no clock here charges, so they have to
    gain `WORTH`. At a load, who meets whom changes the result by more than that: the texts are
    served in several orders. Loads in between expect what their neighbours do.
    """
    expected, history = dict(guidance.overlap), []
    orders = [_turned(recorded, k) for k in range(ORDERS)]
    for load in loads:
        if not guidance.expects_branches(load):
            continue
        without = replace(guidance, overlap={load: dict.fromkeys(guidance.menu, (0.0, 0.0))})
        on, off = (
            [
                runner.run(
                    "recguide",
                    o,
                    load,
                    guidance=replace(g, rho={load: guidance.rho_at(load) * MIDDLE}),
                    learning=False,
                ).score
                for o in orders
            ]
            for g in (guidance, without)
        )
        gain = float(np.mean(on) / np.mean(off) - 1.0) if any(off) else 0.0
        if gain < WORTH:
            expected[load] = without.overlap[load]
        history.append({"concurrency": load, "overlap_gain": gain, "kept": gain >= WORTH})
    return replace(guidance, overlap=_settled(expected, loads)), history


def _turned(recorded: Recorded, k: int) -> Recorded:
    """The texts from the k-th of `ORDERS` parts on, then those before it."""
    at = k * len(recorded.texts) // ORDERS
    texts = [*recorded.texts[at:], *recorded.texts[:at]]
    return Recorded(texts, recorded.max_tokens, recorded.eos_ids)


def _settled(expected: Mapping[int, Expected], loads: Sequence[int]) -> dict[int, Expected]:
    """Loads that were not tried go where both tried neighbours expect nothing."""
    tried, out = sorted(loads), dict(expected)
    for load in set(expected) - set(tried):
        around = [c for c in tried if c < load][-1:] + [c for c in tried if c > load][:1]
        if not any(h for c in around for h, _ in expected[c].values()):
            out[load] = expected[around[0]]
    return out
