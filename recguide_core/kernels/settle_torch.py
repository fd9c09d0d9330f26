"""The end of a round in torch: accept, emit, pick the hit branch, remember.

Works on `round_state` tensors and the packed read-out of the forward. Verify logits at input i
choose the token behind it, so drafts d1.. are checked against the choices at inputs 0..; a draft
or branch row is read without a shift. Entropy counts decisions 0..min(matched, B - 2), the one
decision of an AR step, and for a round that ends at EOS the accepted ones minus one
(`policy.signals.valid_decisions` is the rule; tests hold the two together).
"""

from __future__ import annotations

from recguide_core.kernels.round_state import (
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.records import MAX_BLOCK, Act, BranchKind

EOS, BUDGET = 1, 2


def settle(
    state: RoundState,
    plan: RoundPlan,
    rows: PackedRows,
    read: ReadoutBuffers,
    emitted: Emitted,
    eos_ids: tuple[int, ...],
    decisions: int = MAX_BLOCK,
) -> None:
    """Advance `state` in place and fill `emitted`. Literal twin of `settle_triton.settle_rounds`.

    Args:
        read: read-out of the packed tokens, row i belongs to packed token i.
        eos_ids: tokens that end the output (included in it).
        decisions: k, the most decisions that e_t averages over.
    """
    emitted.count.zero_()
    emitted.matched.zero_()
    emitted.width.zero_()
    emitted.finished.zero_()
    emitted.hit.fill_(-1)
    emitted.entropy.fill_(float("nan"))
    for r in range(len(state.live)):
        act = int(plan.act[r]) if int(state.live[r]) else int(Act.IDLE)
        head, B = int(rows.q_ptr[r]), int(plan.block[r])
        if act == Act.DRAFT:
            _keep_draft(state, read, r, head, B)
        elif act == Act.VERIFY:
            _settle_one(state, plan, read, emitted, r, head, eos_ids, decisions)


def _keep_draft(state: RoundState, read: ReadoutBuffers, r: int, first: int, B: int) -> None:
    """Take the read-out of a draft or branch row as the waiting draft; slot 0 is the seed."""
    span = slice(first, first + B)
    state.draft[r, :B] = read.token[span]
    state.alt[r, :B] = read.alt[span]
    state.margin[r, :B] = read.margin[span]
    state.confidence[r, :B] = read.confidence[span]
    state.draft[r, 0] = state.seed[r]
    state.alt[r, 0] = -1
    state.margin[r, 0] = 1.0
    state.confidence[r, 0] = 1.0
    state.draft_block[r] = B
    state.has_draft[r] = 1


def _settle_one(
    state: RoundState,
    plan: RoundPlan,
    read: ReadoutBuffers,
    emitted: Emitted,
    r: int,
    head: int,
    eos_ids: tuple[int, ...],
    decisions: int,
) -> None:
    B = int(plan.block[r])
    choice = read.token[head : head + B].tolist()
    draft = state.draft[r, :B].tolist()
    matched = 0
    while matched < B - 1 and choice[matched] == draft[matched + 1]:
        matched += 1
    window = choice[: matched + 1]
    count, finished = len(window), 0
    ending = set(state.stop_ids[r].tolist()) - {-1}
    if not int(state.ignore_eos[r]):
        ending |= set(eos_ids)
    ends = [i for i, token in enumerate(window) if token in ending]
    if ends:
        count, finished = ends[0] + 1, EOS
    budget = int(state.remaining[r])
    if budget < count or (budget == count and not finished):
        count, finished = budget, BUDGET

    valid = min(matched + 1, max(B - 1, 1), decisions)
    if finished == EOS:
        valid = min(valid, count - 1)
    entropy = read.entropy[head : head + valid].mean() if valid else float("nan")
    state.e2[r] = state.e1[r]
    state.e1[r] = entropy
    state.prev_block[r] = B
    state.prev_full[r] = int(matched == B - 1)
    state.rounds[r] += 1
    state.committed[r] += count
    state.room[r] -= count
    state.remaining[r] -= count
    state.seed[r] = choice[matched]
    state.has_draft[r] = 0
    emitted.tokens[r, :B] = read.token[head : head + B]
    emitted.count[r] = count
    emitted.matched[r] = matched
    emitted.width[r] = B
    emitted.entropy[r] = entropy
    emitted.finished[r] = finished
    if finished:
        state.live[r] = 0
        return
    hit, first = _hit_branch(plan, read, r, head + B, matched, B, choice[matched])
    emitted.hit[r] = hit
    if hit >= 0:
        _keep_draft(state, read, r, first, int(plan.branch_block[r, hit]))
        state.reused[r] += 1


def _hit_branch(
    plan: RoundPlan, read: ReadoutBuffers, r: int, first: int, matched: int, B: int, bonus: int
) -> tuple[int, int]:
    """The branch whose hypothesis came true and its first packed token, or (-1, -1)."""
    for k in range(plan.kind.shape[1]):
        kind, parent = int(plan.kind[r, k]), int(plan.parent[r, k])
        if kind < 0:
            continue
        right_place = parent == matched + 1
        if kind == BranchKind.CORRECTION:
            hit = right_place and int(plan.alt[r, k]) == bonus
        elif kind == BranchKind.CONTINUATION:
            hit = right_place and int(read.token[first]) == bonus
        else:
            hit = kind == BranchKind.POSITION and right_place
        if hit:
            return k, first
        first += int(plan.branch_block[r, k])
    return -1, -1
