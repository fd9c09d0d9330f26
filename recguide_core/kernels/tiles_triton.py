"""The work list of `tiles`, built on the device so that a captured round needs no host read."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def plan_tiles(
    q_ptr, prefix, items, n_items, groups, n_groups, requests, slots, kv_heads, fixed_range,
    cap_items, cap_groups,
    G: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, R2: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Program r writes the items and groups of request r at its prefix-sum offset.

    q_ptr [requests + 1], prefix [requests] int32; R2 >= requests, a power of two. Writes beyond
    the capacities are dropped and the counts are clamped; `tiles.capacity` makes that impossible.
    """
    r = tl.program_id(0)
    i = tl.arange(0, R2)
    live = i < requests
    begin = tl.load(q_ptr + i, mask=live, other=0)
    tokens = tl.load(q_ptr + i + 1, mask=live, other=0) - begin
    P = tl.load(prefix + i, mask=live, other=0)
    blocks = (tokens * G + BLOCK_M - 1) // BLOCK_M
    longest = tl.max(P, 0)
    length = BLOCK_N
    if fixed_range > 0:
        length = fixed_range
    else:
        total = tl.sum(blocks * tl.maximum((P + length - 1) // length, 1), 0)
        while (total * kv_heads > slots) & (length < longest):
            length += tl.maximum(BLOCK_N, length // 8 // BLOCK_N * BLOCK_N)
            total = tl.sum(blocks * tl.maximum((P + length - 1) // length, 1), 0)
    splits = tl.maximum((P + length - 1) // length, 1)
    n_item = tl.where(live, blocks * splits, 0)
    n_part = tl.where(splits > 1, n_item, 0)
    n_group = tl.where((splits > 1) & live, blocks, 0)
    before = i < r
    item_at = tl.sum(tl.where(before, n_item, 0), 0)
    part_at = tl.sum(tl.where(before, n_part, 0), 0)
    group_at = tl.sum(tl.where(before, n_group, 0), 0)
    if r == requests - 1:
        tl.store(n_items, tl.minimum(tl.sum(n_item, 0), cap_items))
        tl.store(n_groups, tl.minimum(tl.sum(n_group, 0), cap_groups))

    me = i == r
    my_splits = tl.sum(tl.where(me, splits, 0), 0)
    my_items = tl.sum(tl.where(me, n_item, 0), 0)
    my_P = tl.sum(tl.where(me, P, 0), 0)
    q_lo = tl.load(q_ptr + r)
    q_hi = tl.load(q_ptr + r + 1)
    for start in range(0, my_items, STEP):
        e = start + tl.arange(0, STEP)
        ok = (e < my_items) & (item_at + e < cap_items)
        block = e // my_splits
        s = e % my_splits
        at = items + (item_at + e) * 8
        tl.store(at, r, mask=ok)
        tl.store(at + 1, block * BLOCK_M, mask=ok)
        tl.store(at + 2, s * length, mask=ok)
        tl.store(at + 3, tl.minimum(my_P, (s + 1) * length), mask=ok)
        tl.store(at + 4, (s == my_splits - 1).to(tl.int32), mask=ok)
        tl.store(at + 5, tl.where(my_splits > 1, part_at + e, -1), mask=ok)
        tl.store(at + 6, q_lo, mask=ok)
        tl.store(at + 7, q_hi, mask=ok)
    if my_splits > 1:
        my_blocks = my_items // my_splits
        for start in range(0, my_blocks, STEP):
            e = start + tl.arange(0, STEP)
            ok = (e < my_blocks) & (group_at + e < cap_groups)
            at = groups + (group_at + e) * 8
            tl.store(at, part_at + e * my_splits, mask=ok)
            tl.store(at + 1, my_splits, mask=ok)
            tl.store(at + 2, e * BLOCK_M, mask=ok)
            tl.store(at + 3, q_lo, mask=ok)
            tl.store(at + 4, q_hi, mask=ok)
