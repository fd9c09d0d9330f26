"""RoPE, query temperature and the K/V write of commit rows in one pass over QKV (Triton).

Grid (T, ceil((H + 2 N) / BLOCK_H)); tensors as in `rope_torch.rotate_and_store`. The rotated
values go back into the QKV buffer, where the attention kernel reads the in-flight rows; only
tokens with a pool slot also reach the pool, so branch and draft rows leave no trace there. The
slot is looked up here: pages[page_ptr[request] + pos / PAGE] * PAGE + pos % PAGE. cos and sin come
in per token: computing them here would need the slow range reduction, and with it local memory.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl

from recguide_core.kernels.triton_numeric import store_as


@triton.jit
def rotate_and_store(
    qkv, cos, sin, heat, pos, request, commit, pages, page_ptr, k_pool, v_pool,
    s_qkv, s_cos, skp_t, skp_h, svp_t, svp_h, heads, kv_heads,
    HALF: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, HALF)
    turns = head < heads + kv_heads
    exists = head < heads + 2 * kv_heads
    at = qkv + token * s_qkv + head[:, None] * (2 * HALF) + d[None, :]
    a = tl.load(at, mask=exists[:, None], other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=exists[:, None], other=0.0).to(tl.float32)
    c = tl.load(cos + token * s_cos + d)[None, :]
    s = tl.load(sin + token * s_cos + d)[None, :]
    scale = tl.where(head < heads, tl.load(heat + token), 1.0)[:, None]
    lo = tl.where(turns[:, None], (a * c - b * s) * scale, a)
    hi = tl.where(turns[:, None], (b * c + a * s) * scale, b)
    store_as(at, lo, turns[:, None], EXACT)
    store_as(at + HALF, hi, turns[:, None], EXACT)

    owner = tl.load(request + token)
    if (tl.load(commit + token) != 0) & (owner >= 0):
        p = tl.load(pos + token)
        page = tl.load(pages + tl.load(page_ptr + owner) + p // PAGE).to(tl.int64)
        slot = page * PAGE + p % PAGE
        is_k = (head >= heads) & turns
        k_at = k_pool + slot * skp_t + (head - heads)[:, None] * skp_h + d[None, :]
        store_as(k_at, lo, is_k[:, None], EXACT)
        store_as(k_at + HALF, hi, is_k[:, None], EXACT)
        is_v = exists & (head >= heads + kv_heads)
        v_at = v_pool + slot * svp_t + (head - heads - kv_heads)[:, None] * svp_h + d[None, :]
        store_as(v_at, lo, is_v[:, None], EXACT)
        store_as(v_at + HALF, hi, is_v[:, None], EXACT)
