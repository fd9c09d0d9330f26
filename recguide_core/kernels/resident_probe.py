"""Self-test of device-resident rounds: a replay is the eager round, and follows its inputs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recguide_core.kernels.resident_rounds import ResidentRounds
from recguide_core.records import Act

TOKENS = 8


def self_test(rounds: ResidentRounds) -> list[str]:
    """Faults found by drafting from nothing, first eagerly and then under replay.

    A draft commits nothing and the probe has no prefix, so the pool is not touched.
    """
    first, replayed, other = (_probe(rounds, seed) for seed in (5, 5, 6))
    faults = []
    if not np.array_equal(first, replayed):
        faults.append("a replayed round differs from the eager one")
    if np.array_equal(replayed, other):
        faults.append("a replayed round ignores its inputs")
    return faults


def _probe(rounds: ResidentRounds, seed: int) -> npt.NDArray[np.float32]:
    """Statistics of a draft; they move with every change of the hidden state."""
    state, staged = rounds.start(), rounds.staged()
    state.live.zero_()
    state.live[0] = 1
    state.committed.zero_()
    state.seed.fill_(seed)
    state.room.fill_(TOKENS)
    state.remaining.fill_(TOKENS)
    staged.alive[:] = 1
    staged.plan.act.zero_()
    staged.plan.act[0] = int(Act.DRAFT)
    staged.plan.block.fill_(TOKENS)
    staged.plan.kind.fill_(-1)
    rounds.send_state()
    rounds.launch(TOKENS, 1)
    return rounds.collect().stats.copy()
