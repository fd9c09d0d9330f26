"""Shared-prefix attention over packed rows, split along the keys (Triton).

One program computes BLOCK_M (token, query head) pairs of one request and one KV head against a
range of the request's committed prefix. The M axis runs over all rows of the request and all
query heads of the KV head, so prefix K/V are loaded once for every row and every GQA head in the
block. The last range of a request also takes its in-flight keys, masked by two intervals a query.

Tensors (T packed tokens, H query heads, N KV heads, G = H / N, D head size, R requests):
    q [T, H, D], k_new, v_new [T, N, D]     strided views of the QKV projection are fine; last axis
                                            contiguous, strides and addresses multiples of 16
    k_pool, v_pool [slots, N, D]            committed K/V, PAGE consecutive slots a page
    pages [*], page_ptr [R + 1] int32       page table, CSR
    vis [T, 4] int32                        (a0, a1, b0, b1): token t sees packed tokens in
                                            [a0, a1) of its own row and [b0, b1) of the parent row
    items [W, 8], groups [V, 8] int32       work list of `tiles`
    out [T, H, D]; tokens that belong to no request are not written
    part [S, N, BLOCK_M, D], part_lse [S, N, BLOCK_M] fp32   partial results, base-2 log-sum-exp
Twin: `attention_reference.attend`. K/V of rows that do not commit are read here and nowhere else,
so branches need no cache slots.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl

from recguide_core.kernels.triton_numeric import as_weights, dot, store_as


@triton.jit
def attention_tiles(
    q, k_new, v_new, k_pool, v_pool, pages, page_ptr, vis, items, n_items, out, part, part_lse,
    sq_t, sq_h, skn_t, skn_h, svn_t, svn_h, skp_t, skp_h, svp_t, svp_h, so_t, so_h,
    log2_scale, kv_heads,
    G: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    work = tl.program_id(0)
    kv_head = tl.program_id(1)
    # The grid is fixed under CUDA graphs; programs beyond the device-side count leave at once.
    if work >= tl.load(n_items):
        return
    item = items + work * 8
    request = tl.load(item)
    m_start = tl.load(item + 1)
    key_lo = tl.load(item + 2)
    key_hi = tl.load(item + 3)
    takes_rows = tl.load(item + 4)
    slot = tl.load(item + 5)
    q_lo = tl.load(item + 6)
    q_hi = tl.load(item + 7)

    m = m_start + tl.arange(0, BLOCK_M)
    token = q_lo + m // G
    head = kv_head * G + m % G
    inside = token < q_hi
    d = tl.arange(0, D)
    n = tl.arange(0, BLOCK_N)
    q_at = q + token[:, None].to(tl.int64) * sq_t + head[:, None] * sq_h + d[None, :]
    query = tl.load(q_at, mask=inside[:, None], other=0.0)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    norm = tl.zeros((BLOCK_M,), tl.float32)

    # Committed prefix: visible to every row, so only the tail is masked.
    table = pages + tl.load(page_ptr + request)
    for start in tl.range(key_lo, key_hi, BLOCK_N, num_stages=STAGES):
        j = start + n
        live = j < key_hi
        at = tl.load(table + j // PAGE, mask=live, other=0).to(tl.int64) * PAGE + j % PAGE
        k_at = k_pool + at[None, :] * skp_t + kv_head * skp_h + d[:, None]
        key = tl.load(k_at, mask=live[None, :], other=0.0)
        score = dot(query, key, EXACT) * log2_scale
        score = tl.where(live[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        decay = tl.exp2(top - new_top)
        p = tl.exp2(score - new_top[:, None])
        norm = norm * decay + tl.sum(p, 1)
        v_at = v_pool + at[:, None] * svp_t + kv_head * svp_h + d[None, :]
        value = tl.load(v_at, mask=live[:, None], other=0.0)
        acc = acc * decay[:, None] + dot(as_weights(p, value, EXACT), value, EXACT)
        top = new_top

    if takes_rows != 0:
        a0 = tl.load(vis + token * 4, mask=inside, other=0)
        a1 = tl.load(vis + token * 4 + 1, mask=inside, other=0)
        b0 = tl.load(vis + token * 4 + 2, mask=inside, other=0)
        b1 = tl.load(vis + token * 4 + 3, mask=inside, other=0)
        far: tl.constexpr = 2147483647
        own = inside & (a1 > a0)
        parent = inside & (b1 > b0)
        lo_own = tl.min(tl.where(own, a0, far), 0)
        lo = tl.minimum(lo_own, tl.min(tl.where(parent, b0, far), 0))
        hi_own = tl.max(tl.where(own, a1, 0), 0)
        hi = tl.maximum(hi_own, tl.max(tl.where(parent, b1, 0), 0))
        for start in range(lo, hi, BLOCK_N):
            j = start + n
            live = j < hi
            at = j.to(tl.int64)
            k_at = k_new + at[None, :] * skn_t + kv_head * skn_h + d[:, None]
            key = tl.load(k_at, mask=live[None, :], other=0.0)
            score = dot(query, key, EXACT) * log2_scale
            in_own = (j[None, :] >= a0[:, None]) & (j[None, :] < a1[:, None])
            in_parent = (j[None, :] >= b0[:, None]) & (j[None, :] < b1[:, None])
            score = tl.where(in_own | in_parent, score, float("-inf"))
            new_top = tl.maximum(top, tl.max(score, 1))
            # With P = 0 a key block can be wholly invisible to a query: -inf - -inf is NaN.
            shift = tl.where(new_top == float("-inf"), 0.0, new_top)
            decay = tl.exp2(top - shift)
            p = tl.exp2(score - shift[:, None])
            norm = norm * decay + tl.sum(p, 1)
            v_at = v_new + at[:, None] * svn_t + kv_head * svn_h + d[None, :]
            value = tl.load(v_at, mask=live[:, None], other=0.0)
            acc = acc * decay[:, None] + dot(as_weights(p, value, EXACT), value, EXACT)
            top = new_top

    some = norm > 0
    result = acc / tl.where(some, norm, 1.0)[:, None]
    if slot < 0:
        out_at = out + token[:, None].to(tl.int64) * so_t + head[:, None] * so_h + d[None, :]
        store_as(out_at, result, inside[:, None], EXACT)
    else:
        row = (slot * kv_heads + kv_head).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        tl.store(part + row[:, None] * D + d[None, :], result)
        lse = tl.where(some, top + tl.log2(tl.where(some, norm, 1.0)), float("-inf"))
        tl.store(part_lse + row, lse)


@triton.jit
def attention_merge(
    part, part_lse, groups, n_groups, out, so_t, so_h, kv_heads,
    G: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, ROWS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Merge the key ranges of one M block: log-sum-exp weighted mean of the partial results."""
    group = tl.program_id(0)
    kv_head = tl.program_id(1)
    if group >= tl.load(n_groups):
        return
    first = tl.load(groups + group * 8)
    splits = tl.load(groups + group * 8 + 1)
    m_start = tl.load(groups + group * 8 + 2)
    q_lo = tl.load(groups + group * 8 + 3)
    q_hi = tl.load(groups + group * 8 + 4)
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    m = m_start + rows
    token = q_lo + m // G
    head = kv_head * G + m % G
    d = tl.arange(0, D)
    acc = tl.zeros((ROWS, D), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    for split in range(splits):
        base = ((first + split) * kv_heads + kv_head).to(tl.int64) * BLOCK_M + rows
        lse = tl.load(part_lse + base)
        new_top = tl.maximum(top, lse)
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        decay = tl.exp2(top - shift)
        weight = tl.exp2(lse - shift)
        value = tl.load(part + base[:, None] * D + d[None, :])
        acc = acc * decay[:, None] + value * weight[:, None]
        norm = norm * decay + weight
        top = new_top
    result = acc / tl.where(norm > 0, norm, 1.0)[:, None]
    out_at = out + token[:, None].to(tl.int64) * so_t + head[:, None] * so_h + d[None, :]
    store_as(out_at, result, (token < q_hi)[:, None], EXACT)
