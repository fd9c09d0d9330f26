"""Read-out in one pass over the vocabulary (Triton), same results as `readout_torch.read_out`.

`readout_partials`, grid (rows, splits): every lane keeps its two best tokens and, relative to its
best logit m, s = sum e^(z-m) and t = sum (z-m) e^(z-m); one exp an element. Entropy is then
ln s - t / s, which cancels no large numbers. `readout_merge`, grid (rows,): joins the splits and
inserts the EOS tokens, which the stream leaves out: so `alt` (no EOS) and `p2` (EOS allowed) both
come from a top-2. Up to four EOS ids, -1 for none.

    logits [n, V] bf16 / fp16 / fp32, last axis contiguous, row stride a multiple of 16
    part_f fp32 [n, splits, 4], part_i int32 [n, splits, 2]
    ids int32 [n, 2] = (token, alt or -1); stats fp32 [n, 5] = (p1, p2, margin, entropy, lse)
NaN or +inf logits make the statistics NaN: a fault of that row. Entropy is exact to about 1e-6
absolute.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def join_lanes(v1, i1, v2, i2, s, t):
    """The two best and the sums over all lanes; ties to the lowest id."""
    far: tl.constexpr = 2147483647
    low = float("-inf")
    first = tl.max(v1, 0)
    first_id = tl.min(tl.where(v1 == first, i1, far), 0)
    won = (v1 == first) & (i1 == first_id)
    rest = tl.where(won, v2, v1)
    rest_id = tl.where(won, i2, i1)
    second = tl.max(rest, 0)
    second_id = tl.min(tl.where((rest == second) & (rest > low), rest_id, far), 0)
    gap = tl.where(v1 > low, v1 - first, 0.0)
    e = tl.where(v1 > low, tl.exp(gap), 0.0)
    return first, first_id, second, second_id, tl.sum(s * e, 0), tl.sum(e * (t + gap * s), 0)


@triton.jit
def readout_partials(
    logits, part_f, part_i, V, stride, chunk, splits, mask_id, eos_a, eos_b, eos_c, eos_d,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    lo = split * chunk
    hi = tl.minimum(lo + chunk, V)
    k = tl.arange(0, BLOCK)
    low = float("-inf")
    far: tl.constexpr = 2147483647
    v1 = tl.full((BLOCK,), low, tl.float32)
    v2 = tl.full((BLOCK,), low, tl.float32)
    i1 = tl.full((BLOCK,), far, tl.int32)
    i2 = tl.full((BLOCK,), far, tl.int32)
    s = tl.zeros((BLOCK,), tl.float32)
    t = tl.zeros((BLOCK,), tl.float32)
    for start in range(lo, hi, BLOCK):
        i = start + k
        z = tl.load(logits + row * stride + i, mask=i < hi, other=low).to(tl.float32)
        # Outside the load's mask: there it would turn 16-byte loads into 2-byte ones.
        hidden = (i == mask_id) | (i == eos_a) | (i == eos_b) | (i == eos_c) | (i == eos_d)
        z = tl.where(hidden, low, z)
        up = z > v1
        high = tl.where(up, z, v1)
        less = tl.where(up, v1, z)
        dead = less == low
        gap = less - high
        e = tl.where(dead, 0.0, tl.exp(gap))
        ge = tl.where(dead, 0.0, gap * e)
        t = tl.where(up, e * t + ge * s, t + ge)
        s = tl.where(up, e * s + 1.0, s + e)
        up2 = z > v2
        i2 = tl.where(up, i1, tl.where(up2, i, i2))
        v2 = tl.where(up, v1, tl.where(up2, z, v2))
        i1 = tl.where(up, i, i1)
        v1 = high
    v1, i1, v2, i2, s, t = join_lanes(v1, i1, v2, i2, s, t)
    at = row * splits + split
    tl.store(part_f + at * 4, v1)
    tl.store(part_f + at * 4 + 1, v2)
    tl.store(part_f + at * 4 + 2, s)
    tl.store(part_f + at * 4 + 3, t)
    tl.store(part_i + at * 2, i1)
    tl.store(part_i + at * 2 + 1, i2)


@triton.jit
def insert_eos(logits, row, stride, eos, top, token, second, total, moment):
    """Take one EOS token into the best logit, its id, the runner-up and the sums."""
    low = float("-inf")
    z = tl.load(logits + row * stride + eos, mask=eos >= 0, other=low).to(tl.float32)
    wins = (z > top) | ((z == top) & (z > low) & (eos < token))
    second = tl.where(wins, top, tl.maximum(second, z))
    token = tl.where(wins, eos, token)
    new_top = tl.maximum(top, z)
    gap = tl.where(top > low, top - new_top, 0.0)
    e = tl.where(top > low, tl.exp(gap), 0.0)
    own_gap = tl.where(z > low, z - new_top, 0.0)
    own = tl.where(z > low, tl.exp(own_gap), 0.0)
    moment = e * (moment + gap * total) + own_gap * own
    return new_top, token, second, total * e + own, moment


@triton.jit
def readout_merge(
    logits, stride, part_f, part_i, ids, stats, splits, eos_a, eos_b, eos_c, eos_d,
    SPLITS2: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, SPLITS2)
    ok = k < splits
    low = float("-inf")
    far: tl.constexpr = 2147483647
    f = part_f + (row * splits + k) * 4
    g = part_i + (row * splits + k) * 2
    v1 = tl.load(f, mask=ok, other=low)
    v2 = tl.load(f + 1, mask=ok, other=low)
    s = tl.load(f + 2, mask=ok, other=0.0)
    t = tl.load(f + 3, mask=ok, other=0.0)
    i1 = tl.load(g, mask=ok, other=far)
    i2 = tl.load(g + 1, mask=ok, other=far)
    top, first, second, other, total, moment = join_lanes(v1, i1, v2, i2, s, t)
    token = first
    top, token, second, total, moment = insert_eos(
        logits, row, stride, eos_a, top, token, second, total, moment)  # fmt: skip
    top, token, second, total, moment = insert_eos(
        logits, row, stride, eos_b, top, token, second, total, moment)  # fmt: skip
    top, token, second, total, moment = insert_eos(
        logits, row, stride, eos_c, top, token, second, total, moment)  # fmt: skip
    top, token, second, total, moment = insert_eos(
        logits, row, stride, eos_d, top, token, second, total, moment)  # fmt: skip
    p1 = 1.0 / total
    p2 = tl.where(second == low, 0.0, tl.exp(second - top) / total)
    alt = tl.where(token == first, other, first)
    entropy = tl.log(total) - moment / total
    tl.store(ids + row * 2, token)
    tl.store(ids + row * 2 + 1, tl.where(alt == far, -1, alt))
    tl.store(stats + row * 5, p1)
    tl.store(stats + row * 5 + 1, p2)
    tl.store(stats + row * 5 + 2, p1 - p2)
    # Rounding can leave a confident row a hair below zero.
    tl.store(stats + row * 5 + 3, tl.where(entropy < 0, 0.0, entropy))
    tl.store(stats + row * 5 + 4, top + tl.log(total))
