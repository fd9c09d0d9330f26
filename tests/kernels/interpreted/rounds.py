"""choose, assemble and settle against their twins, on drawn states."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.ops import Geometry, TorchRoundOps
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kernels.round_state import (
    STOP_IDS,
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.records import MAX_BLOCK

MASK, EOS = 100, 11
GEOMETRY = Geometry(2, 1, 64, 200, 16, MASK, (EOS,))
FIXED = settings(deadline=None, derandomize=True, database=None)
RULES = (
    RoundRule(),
    RoundRule(corrections=2, continuation=True),
    RoundRule(corrections=1),
    RoundRule(tidar=True),
)


def drawn_state(seed: int, slots: int) -> RoundState:
    """Random requests: dead ones, fresh ones, tight budgets and rooms, few token ids."""
    g = torch.Generator().manual_seed(seed)
    state = RoundState.sized(slots)

    def ints(lo: int, hi: int, *shape: int) -> torch.Tensor:
        return torch.randint(lo, hi, shape or (slots,), generator=g, dtype=torch.int32)

    state.live.copy_((ints(0, 6) > 0).int())
    state.has_draft.copy_(ints(0, 2))
    state.committed.copy_(ints(0, 500))
    state.seed.copy_(ints(20, 24))
    state.remaining.copy_(ints(1, 40))
    state.room.copy_(ints(0, 90))
    state.draft_block.copy_(ints(2, MAX_BLOCK + 1))
    state.draft.copy_(ints(20, 23, slots, MAX_BLOCK))
    state.draft[:, 0] = state.seed
    state.alt.copy_(ints(19, 23, slots, MAX_BLOCK))
    state.alt[state.alt == 19] = -1
    state.margin.copy_(torch.rand(slots, MAX_BLOCK, generator=g))
    state.e1.copy_(torch.rand(slots, generator=g))
    # One slot in three brings stop ids, one of which the read-out can give.
    state.stop_ids[::3, 2] = 21
    state.stop_ids[::3, 7] = 999
    state.ignore_eos.copy_(ints(0, 2))
    return state


def drawn_readout(seed: int, rows: PackedRows, state: RoundState) -> ReadoutBuffers:
    """Choices that follow the drafts for a while, so that blocks match, miss and end."""
    g = torch.Generator().manual_seed(seed)
    n = len(rows.ids)
    read = ReadoutBuffers.sized(n)
    read.ids.copy_(torch.randint(20, 23, (n, 2), generator=g, dtype=torch.int32))
    read.stats.copy_(torch.rand(n, 5, generator=g))
    follow = torch.rand(n, generator=g) < 0.85
    follow[-1] = False
    shifted = torch.roll(rows.ids, -1)
    keep = follow & (rows.commit != 0)
    read.ids[keep, 0] = shifted[keep]
    read.ids[torch.rand(n, generator=g) < 0.03, 0] = EOS
    return read


def ops_for(tokens: int, slots: int) -> tuple[TorchRoundOps, TritonRoundOps]:
    return TorchRoundOps(GEOMETRY), TritonRoundOps(GEOMETRY, tokens, slots, "cpu", 4, exact=True)


def dirty(record):
    """Every buffer full of nonsense: what a kernel forgets to write shows."""
    for tensor in record.tensors().values():
        tensor.fill_(-77)
    return record


def equal(a, b) -> None:
    for name, tensor in a.tensors().items():
        same = torch.equal(tensor.nan_to_num(-1e9), getattr(b, name).nan_to_num(-1e9))
        close = tensor.dtype == torch.float32 and torch.allclose(
            tensor, getattr(b, name), atol=1e-6, equal_nan=True
        )
        assert same or close, (name, tensor, getattr(b, name))


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(RULES), st.integers(1, 32))
@settings(FIXED, max_examples=30)
def test_a_round_equals_its_twin(seed: int, slots: int, rule: RoundRule, decisions: int) -> None:
    """choose -> assemble -> settle, each fed the twin's inputs, from the same state."""
    state = drawn_state(seed, slots)
    g = torch.Generator().manual_seed(seed)
    menu = torch.tensor([1, 2, 8, 16, 32], dtype=torch.int32)
    target = menu[torch.randint(0, 5, (slots,), generator=g)]
    branches = MAX_BLOCK if rule.tidar else 3
    capacity = slots * MAX_BLOCK * (branches + 1) + 5
    torch_ops, triton_ops = ops_for(capacity, slots)

    plan, other = (RoundPlan.sized(slots, branches=branches) for _ in range(2))
    torch_ops.choose(state, target, rule, plan)
    triton_ops.choose(state, target, rule, dirty(other))
    equal(plan, other)

    rows, mine = (PackedRows.sized(capacity, slots) for _ in range(2))
    torch_ops.assemble(state, plan, rows)
    triton_ops.assemble(state, plan, dirty(mine))
    equal(rows, mine)

    read = drawn_readout(seed + 1, rows, state)
    emitted, got = Emitted.sized(slots), dirty(Emitted.sized(slots))
    after, before = copy.deepcopy(state), state
    torch_ops.settle(after, plan, rows, read, emitted, decisions)
    triton_ops.settle(before, plan, rows, read, got, decisions)
    equal(after, before)
    used = torch.arange(MAX_BLOCK)[None, :] < emitted.width[:, None]
    got.tokens[~used] = 0
    emitted.tokens[~used] = 0
    # Written by the loop, behind the packing of the next step.
    got.next_tokens.zero_()
    equal(emitted, got)


@pytest.mark.parametrize("place", [0, STOP_IDS - 1])
@pytest.mark.parametrize("ignore", [0, 1])
def test_a_stop_id_ends_the_output_at_its_token(place: int, ignore: int) -> None:
    """Stop ids are looked at in every place, EOS unless the request goes on behind it."""
    state = RoundState.sized(2)
    for name, value in (("live", 1), ("has_draft", 1), ("draft_block", 8), ("remaining", 99)):
        getattr(state, name).fill_(value)
    state.room.fill_(99)
    state.draft[:, :8] = torch.arange(30, 38)
    state.draft[:, 2] = EOS
    state.stop_ids[0, place] = 34
    state.ignore_eos.fill_(ignore)
    plan = RoundPlan.sized(2)
    plan.act.fill_(2)
    plan.block.fill_(8)
    rows = PackedRows.sized(16, 2)
    rows.q_ptr.copy_(torch.tensor([0, 8, 16]))
    read = ReadoutBuffers.sized(16)
    read.ids[:, 0] = torch.roll(state.draft[:, :8], -1, 1).reshape(-1)
    read.stats.fill_(0.5)
    for ops in ops_for(16, 2):
        after, emitted = copy.deepcopy(state), Emitted.sized(2)
        ops.settle(after, plan, rows, read, emitted, MAX_BLOCK)
        # Choices are 31, EOS, 33, 34, ...: EOS is the second, the stop id the fourth.
        assert emitted.count.tolist() == ([4, 8] if ignore else [2, 2])
        assert emitted.finished.tolist() == ([1, 0] if ignore else [1, 1])
        assert after.live.tolist() == ([0, 1] if ignore else [0, 0])


@pytest.mark.parametrize("kind", ["correction", "continuation", "position"])
@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_only_the_right_branch_is_reused(kind: str, shift: int) -> None:
    """A branch one position off the mismatch must not be taken over."""
    state = RoundState.sized(1)
    for name, value in (("live", 1), ("has_draft", 1), ("draft_block", 8), ("remaining", 99)):
        getattr(state, name).fill_(value)
    state.room.fill_(99)
    state.draft[0, :8] = torch.arange(30, 38)
    state.seed.fill_(30)
    matched = 7 if kind == "continuation" else 3
    plan = RoundPlan.sized(1)
    plan.act.fill_(2)
    plan.block.fill_(8)
    plan.kind[0, 0] = ("correction", "continuation", "position").index(kind)
    plan.parent[0, 0] = matched + 1 + shift
    plan.alt[0, 0] = 77 if kind == "correction" else -1
    plan.branch_block[0, 0] = 4
    ops = TritonRoundOps(GEOMETRY, 16, 1, "cpu", 4, exact=True)
    rows = PackedRows.sized(16, 1)
    ops.assemble(state, plan, rows)
    read = ReadoutBuffers.sized(16)
    read.ids[:7, 0] = torch.arange(31, 38)
    read.ids[matched, 0] = 77
    read.ids[8:12, 0] = torch.tensor([77, 81, 82, 83])
    emitted = Emitted.sized(1)
    ops.settle(state, plan, rows, read, emitted, 32)
    assert int(emitted.matched) == matched
    assert int(emitted.hit) == (0 if shift == 0 else -1)
    if shift == 0:
        assert state.draft[0, :4].tolist() == [77, 81, 82, 83]
        assert int(state.draft_block) == 4 and int(state.reused) == 1


def test_a_margin_of_delta_is_not_risky() -> None:
    """Risk is strict: a margin of exactly delta opens no branch."""
    state = RoundState.sized(1)
    for name, value in (("live", 1), ("has_draft", 1), ("draft_block", 8), ("remaining", 99)):
        getattr(state, name).fill_(value)
    state.room.fill_(99)
    state.alt.fill_(33)
    state.margin[0, 4] = 0.5
    state.margin[0, 6] = 0.25
    target = torch.tensor([8], dtype=torch.int32)
    plan = RoundPlan.sized(1)
    _, ops = ops_for(64, 1)
    ops.choose(state, target, RoundRule(corrections=2), plan)
    assert plan.parent.tolist() == [[6, 0, 0]]
    assert plan.kind.tolist() == [[0, -1, -1]]
