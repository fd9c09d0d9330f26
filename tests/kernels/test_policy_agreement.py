"""The device rules are the policy's rules: branches of a round and the entropy of a round."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.kernels.choose_torch import RoundRule, choose
from recguide_core.kernels.round_state import (
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.kernels.settle_torch import settle
from recguide_core.policy.branches import BranchRule, propose
from recguide_core.policy.signals import round_entropy
from recguide_core.records import MAX_BLOCK

FIXED = settings(deadline=None, derandomize=True, database=None)


@given(
    seed=st.integers(0, 10**6),
    corrections=st.integers(0, 2),
    continuation=st.booleans(),
    delta=st.sampled_from([0.1, 0.5, 0.9]),
)
@settings(FIXED, max_examples=40)
def test_branches_are_those_of_the_policy(seed, corrections, continuation, delta) -> None:
    n = 6
    g = torch.Generator().manual_seed(seed)
    state = RoundState.sized(n)
    state.live.fill_(1)
    state.has_draft.fill_(1)
    block = torch.randint(2, 17, (1,), generator=g, dtype=torch.int32).expand(n)
    state.draft_block.copy_(block)
    state.remaining.copy_(torch.randint(1, 40, (n,), generator=g))
    state.room.copy_(torch.randint(17, 60, (n,), generator=g))
    state.margin.copy_(torch.rand(n, MAX_BLOCK, generator=g))
    state.alt.copy_(torch.randint(-1, 5, (n, MAX_BLOCK), generator=g))
    plan = RoundPlan.sized(n)
    choose(state, block, RoundRule(delta, corrections, continuation), plan)
    want = propose(
        state.margin.numpy(), state.alt.numpy().astype(np.int64), block.numpy().astype(np.int64),
        state.remaining.numpy().astype(np.int64), state.room.numpy().astype(np.int64),
        BranchRule(delta, corrections, continuation),
    )  # fmt: skip
    grids = (plan.kind, plan.parent, plan.alt, plan.branch_block)
    for ours, theirs in zip(grids, want.plan_grids(), strict=True):
        assert ours.tolist() == theirs.tolist()


@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 3, 7, 32]))
@settings(FIXED, max_examples=30)
def test_entropy_is_that_of_the_policy(seed: int, k: int) -> None:
    g = torch.Generator().manual_seed(seed)
    B = int(torch.randint(1, 17, (1,), generator=g))
    eos = 9
    state = RoundState.sized(1)
    for name, value in (("live", 1), ("has_draft", 1), ("draft_block", B), ("remaining", 99)):
        getattr(state, name).fill_(value)
    state.draft.copy_(torch.randint(5, 7, (1, MAX_BLOCK), generator=g))
    plan = RoundPlan.sized(1)
    plan.act.fill_(2)
    plan.block.fill_(B)
    rows = PackedRows.sized(MAX_BLOCK, 1)
    read = ReadoutBuffers.sized(MAX_BLOCK)
    read.ids[:, 0] = torch.randint(5, 7, (MAX_BLOCK,), generator=g)
    read.ids[torch.rand(MAX_BLOCK, generator=g) < 0.1, 0] = eos
    read.stats.copy_(torch.rand(MAX_BLOCK, 5, generator=g))
    emitted = Emitted.sized(1)
    settle(state, plan, rows, read, emitted, (eos,), k)
    matched, count = int(emitted.matched), int(emitted.count)
    limit = np.array([count - 1]) if int(emitted.finished) == 1 else None
    want = round_entropy(
        read.entropy[None, :B].numpy(), np.array([B]), np.array([matched]), limit, k
    )
    assert np.allclose(emitted.entropy.numpy(), want, atol=1e-6, equal_nan=True)
