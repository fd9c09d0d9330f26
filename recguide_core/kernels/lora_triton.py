"""The draft adapter under a row mask (Triton), two kernels; twin `lora_torch.add_masked`.

`lora_shrink`, grid (ceil(T / BLOCK_M), splits): x A^T over one part of K, fp32 partials
part [splits, T, RANK]. K is split because a forward of 16 tokens is otherwise one program's
serial walk over A. `lora_expand`, grid (ceil(T / BLOCK_M), hidden / BLOCK_N): sums the partials in
order (deterministic), rounds, multiplies by B^T, adds where the token's adapter flag is set.
Tiles without an adapter token leave at once, so verify-only tiles cost nothing.

K a multiple of splits x BLOCK_K, hidden of BLOCK_N; rows contiguous, strides multiples of 16.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl

from recguide_core.kernels.triton_numeric import dot, round_bf16, store_as


@triton.jit
def round_like(x, like, EXACT: tl.constexpr):
    """fp32 x in the element type of pointer `like`."""
    if EXACT and like.dtype.element_ty == tl.bfloat16:
        return round_bf16(x)
    else:
        return x.to(like.dtype.element_ty)


@triton.jit
def lora_shrink(
    x, down, adapter, part, T, K_part, s_x, s_down,
    RANK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    inside = token < T
    on = tl.load(adapter + token, mask=inside, other=0) != 0
    if tl.max(on.to(tl.int32), 0) == 0:
        return
    rank = tl.arange(0, RANK)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, RANK), tl.float32)
    at = token[:, None].to(tl.int64) * s_x
    for start in range(split * K_part, (split + 1) * K_part, BLOCK_K):
        a = tl.load(x + at + (start + k)[None, :], mask=on[:, None], other=0.0)
        w = tl.load(down + rank[None, :] * s_down + (start + k)[:, None])
        acc += dot(a, w, EXACT)
    to = part + (split * T + token)[:, None].to(tl.int64) * RANK + rank[None, :]
    tl.store(to, acc, mask=inside[:, None])


@triton.jit
def lora_expand(
    out, part, up, adapter, T, splits, s_out, s_up,
    RANK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = token < T
    on = tl.load(adapter + token, mask=inside, other=0) != 0
    if tl.max(on.to(tl.int32), 0) == 0:
        return
    rank = tl.arange(0, RANK)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    low = tl.zeros((BLOCK_M, RANK), tl.float32)
    for split in range(splits):
        frm = part + (split * T + token)[:, None].to(tl.int64) * RANK + rank[None, :]
        low += tl.load(frm, mask=inside[:, None], other=0.0)
    weight = tl.load(up + column[None, :] * s_up + rank[:, None])
    delta = dot(round_like(low, out, EXACT), weight, EXACT)
    to = out + token[:, None].to(tl.int64) * s_out + column[None, :]
    before = tl.load(to, mask=on[:, None], other=0.0).to(tl.float32)
    store_as(to, before + delta, on[:, None], EXACT)
