"""The end of a round (Triton): one program a request, one warp, no host read.

Tensors as in `round_state` and `readout_triton` (ids [T, 2], stats [T, 5] of the packed tokens);
twin and rules: `settle_torch.settle`.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keep_draft(draft, alt, margin, confidence, ids, stats, r, first, B, bonus, use,
               MAX_B: tl.constexpr):  # fmt: skip
    """Copy the read-out of a row into the waiting draft where `use`; slot 0 is the seed."""
    i = tl.arange(0, MAX_B)
    ok = (i < B) & use
    at = first + i
    token = tl.load(ids + at * 2, mask=ok, other=0)
    other = tl.load(ids + at * 2 + 1, mask=ok, other=-1)
    m = tl.load(stats + at * 5 + 2, mask=ok, other=1.0)
    c = tl.load(stats + at * 5, mask=ok, other=1.0)
    to = r * MAX_B + i
    tl.store(draft + to, tl.where(i == 0, bonus, token), mask=ok)
    tl.store(alt + to, tl.where(i == 0, -1, other), mask=ok)
    tl.store(margin + to, tl.where(i == 0, 1.0, m), mask=ok)
    tl.store(confidence + to, tl.where(i == 0, 1.0, c), mask=ok)


@triton.jit
def settle_rounds(
    live, has_draft, committed, seed, remaining, room, draft_block, draft, alt, margin, confidence,
    e1, e2, prev_block, prev_full, rounds, reused, stop_ids, ignore_eos,
    act, block, kind, parent, branch_alt, branch_block, q_ptr, ids, stats,
    out_tokens, out_count, out_matched, out_hit, out_width, out_finished, out_entropy,
    eos_a, eos_b, eos_c, eos_d, decisions, K,
    MAX_B: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Grid (slots,); MAX_B a power of two; STOPS stop ids a request."""
    r = tl.program_id(0)
    what = tl.where(tl.load(live + r) != 0, tl.load(act + r), 0)
    B = tl.load(block + r)
    head = tl.load(q_ptr + r)
    i = tl.arange(0, MAX_B)
    nan = float("nan")
    count = 0
    matched = 0
    width = 0
    finished = 0
    hit = -1
    entropy = nan
    if what == 1:
        old_seed = tl.load(seed + r)
        keep_draft(draft, alt, margin, confidence, ids, stats, r, head, B, old_seed, True, MAX_B)
        tl.store(draft_block + r, B)
        tl.store(has_draft + r, 1)
    if what == 2:
        width = B
        inside = i < B
        choice = tl.load(ids + (head + i) * 2, mask=inside, other=-3)
        # Input i is checked against the draft token behind it.
        drafted = tl.load(draft + r * MAX_B + i + 1, mask=i + 1 < B, other=-2)
        wrong = (i + 1 < B) & (choice != drafted)
        matched = tl.min(tl.where(wrong, i, B - 1), 0)
        bonus = tl.sum(tl.where(i == matched, choice, 0), 0)
        ends = (choice == eos_a) | (choice == eos_b) | (choice == eos_c) | (choice == eos_d)
        ends = ends & (tl.load(ignore_eos + r) == 0)
        for s in tl.static_range(STOPS):
            ends = ends | (choice == tl.load(stop_ids + r * STOPS + s))
        stop_at = tl.min(tl.where((i <= matched) & ends, i, MAX_B), 0)
        at_eos = stop_at < MAX_B
        count = tl.where(at_eos, stop_at + 1, matched + 1)
        finished = tl.where(at_eos, 1, 0)
        budget = tl.load(remaining + r)
        out_of_budget = (budget < count) | ((budget == count) & (finished == 0))
        finished = tl.where(out_of_budget, 2, finished)
        count = tl.minimum(count, budget)

        valid = tl.minimum(tl.minimum(matched + 1, tl.maximum(B - 1, 1)), decisions)
        valid = tl.where(finished == 1, tl.minimum(valid, count - 1), valid)
        h = tl.load(stats + (head + i) * 5 + 3, mask=i < valid, other=0.0)
        total = tl.sum(h, 0)
        entropy = tl.where(valid > 0, total / tl.maximum(valid, 1).to(tl.float32), nan)
        tl.store(e2 + r, tl.load(e1 + r))
        tl.store(e1 + r, entropy)
        tl.store(prev_block + r, B)
        tl.store(prev_full + r, tl.where(matched == B - 1, 1, 0))
        tl.store(rounds + r, tl.load(rounds + r) + 1)
        tl.store(committed + r, tl.load(committed + r) + count)
        tl.store(room + r, tl.load(room + r) - count)
        tl.store(remaining + r, budget - count)
        tl.store(seed + r, bonus)
        tl.store(out_tokens + r * MAX_B + i, choice, mask=inside)

        first = head + B
        hit_first = head
        hit_block = 0
        for k in range(K):
            what_kind = tl.load(kind + r * K + k)
            size = tl.where(what_kind >= 0, tl.load(branch_block + r * K + k), 0)
            place = tl.load(parent + r * K + k) == matched + 1
            guess = tl.load(ids + first * 2, mask=(what_kind == 1) & place, other=-1)
            right = (what_kind == 0) & (tl.load(branch_alt + r * K + k) == bonus)
            right = right | ((what_kind == 1) & (guess == bonus)) | (what_kind == 2)
            take = place & right & (hit < 0) & (finished == 0)
            hit = tl.where(take, k, hit)
            hit_first = tl.where(take, first, hit_first)
            hit_block = tl.where(take, size, hit_block)
            first += size
        keep_draft(draft, alt, margin, confidence, ids, stats, r, hit_first, hit_block, bonus,
                   hit >= 0, MAX_B)  # fmt: skip
        tl.store(has_draft + r, tl.where(hit >= 0, 1, 0))
        if hit >= 0:
            tl.store(draft_block + r, hit_block)
            tl.store(reused + r, tl.load(reused + r) + 1)
        if finished != 0:
            tl.store(live + r, 0)
    tl.store(out_count + r, count)
    tl.store(out_matched + r, matched)
    tl.store(out_width + r, width)
    tl.store(out_finished + r, finished)
    tl.store(out_hit + r, hit)
    tl.store(out_entropy + r, entropy)
