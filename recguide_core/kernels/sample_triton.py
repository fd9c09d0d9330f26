"""Read-out of rows that sample, in one pass over the vocabulary (Triton).

Like `readout_triton`, with the token chosen by position-keyed Gumbel-max: the best and the
runner-up are those of the scores y = z / T + g, confidence and margin are the softmax of y, and
entropy and log-sum-exp stay those of the model's logits z. Rows with T = 0 are greedy (y = z).
Same results as `readout_torch.read_out` with `SamplingRows` that filter nothing.

g is looked up, not computed: the hash of `sampling_torch` leaves 23 bits, and its 2^23 noise values
come from the host as a table. So the noise of a position is the host's, bit for bit, whatever the
logarithm of a device rounds to.

    logits [n, V]; heat fp32 [n] = T; key int32 [n], the bits of `sampling_torch.position_key`
    noise fp32 [2^23]; part_f fp32 [n, splits, 6], part_i int32 [n, splits, 2]
    ids int32 [n, 2]; stats fp32 [n, 5]
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl

from recguide_core.kernels.readout_triton import join_lanes


@triton.jit
def mix(x):
    """`sampling_torch._mix` on uint32."""
    x = (x ^ (x >> 16)) * tl.full((), 0x7FEB352D, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full((), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def score(z, i, heat, key, noise, ok):
    """y of tokens i: z / T + g where T > 0, else z; -inf stays."""
    code = mix(i.to(tl.uint32) * tl.full((), 0x9E3779B1, tl.uint32))
    at = (mix(code ^ key) >> 9).to(tl.int32)
    # As wide as z: the interpreter cannot join a scalar flag with a block of flags.
    T = tl.zeros_like(z) + heat
    hot = T > 0
    g = tl.load(noise + at, mask=ok & hot, other=0.0)
    return tl.where(hot, tl.math.div_rn(z, tl.where(hot, T, 1.0)) + g, z)


@triton.jit
def sample_partials(
    logits, heat, key, noise, part_f, part_i, V, stride, chunk, splits, mask_id,
    eos_a, eos_b, eos_c, eos_d,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, splits); EOS tokens are left to the merge."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    lo = split * chunk
    hi = tl.minimum(lo + chunk, V)
    k = tl.arange(0, BLOCK)
    low = float("-inf")
    far: tl.constexpr = 2147483647
    T = tl.load(heat + row)
    bits = tl.load(key + row).to(tl.uint32, bitcast=True)
    v1 = tl.full((BLOCK,), low, tl.float32)
    v2 = tl.full((BLOCK,), low, tl.float32)
    i1 = tl.full((BLOCK,), far, tl.int32)
    i2 = tl.full((BLOCK,), far, tl.int32)
    sy = tl.zeros((BLOCK,), tl.float32)
    m = tl.full((BLOCK,), low, tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    t = tl.zeros((BLOCK,), tl.float32)
    for start in range(lo, hi, BLOCK):
        i = start + k
        z = tl.load(logits + row * stride + i, mask=i < hi, other=low).to(tl.float32)
        hidden = (i == mask_id) | (i == eos_a) | (i == eos_b) | (i == eos_c) | (i == eos_d)
        z = tl.where(hidden, low, z)
        y = score(z, i, T, bits, noise, i < hi)
        # The model's own distribution: entropy and log-sum-exp.
        up = z > m
        high = tl.where(up, z, m)
        # Not the minimum: a NaN has to come through.
        less = tl.where(up, m, z)
        dead = less == low
        gap = less - high
        e = tl.where(dead, 0.0, tl.exp(gap))
        ge = tl.where(dead, 0.0, gap * e)
        t = tl.where(up, e * t + ge * s, t + ge)
        s = tl.where(up, e * s + 1.0, s + e)
        m = high
        # The perturbed scores: the token and how close the next one came.
        up = y > v1
        high = tl.where(up, y, v1)
        less = tl.where(up, v1, y)
        e = tl.where(less == low, 0.0, tl.exp(less - high))
        sy = tl.where(up, e * sy + 1.0, sy + e)
        up2 = y > v2
        i2 = tl.where(up, i1, tl.where(up2, i, i2))
        v2 = tl.where(up, v1, tl.where(up2, y, v2))
        i1 = tl.where(up, i, i1)
        v1 = high
    v1, i1, v2, i2, sy, _ = join_lanes(v1, i1, v2, i2, sy, sy)
    m, s, t = join_sums(m, s, t)
    at = row * splits + split
    tl.store(part_f + at * 6, v1)
    tl.store(part_f + at * 6 + 1, v2)
    tl.store(part_f + at * 6 + 2, sy)
    tl.store(part_f + at * 6 + 3, m)
    tl.store(part_f + at * 6 + 4, s)
    tl.store(part_f + at * 6 + 5, t)
    tl.store(part_i + at * 2, i1)
    tl.store(part_i + at * 2 + 1, i2)


@triton.jit
def join_sums(m, s, t):
    """Maximum, sum e^(z - m) and sum (z - m) e^(z - m) over all lanes."""
    low = float("-inf")
    top = tl.max(m, 0)
    gap = tl.where(m > low, m - top, 0.0)
    e = tl.where(m > low, tl.exp(gap), 0.0)
    return top, tl.sum(s * e, 0), tl.sum(e * (t + gap * s), 0)


@triton.jit
def take_eos(logits, row, stride, eos, T, bits, noise, v1, i1, v2, sy, m, s, t):
    """One EOS token into the best score, its id, the runner-up and both distributions."""
    low = float("-inf")
    z = tl.load(logits + row * stride + eos, mask=eos >= 0, other=low).to(tl.float32)
    y = score(z, eos, T, bits, noise, eos >= 0)
    y = tl.where(z > low, y, low)
    wins = (y > v1) | ((y == v1) & (y > low) & (eos < i1))
    v2 = tl.where(wins, v1, tl.maximum(v2, y))
    i1 = tl.where(wins, eos, i1)
    high = tl.maximum(v1, y)
    old = tl.where(v1 > low, tl.exp(tl.where(v1 > low, v1 - high, 0.0)), 0.0)
    own = tl.where(y > low, tl.exp(tl.where(y > low, y - high, 0.0)), 0.0)
    top = tl.maximum(m, z)
    gap = tl.where(m > low, m - top, 0.0)
    e = tl.where(m > low, tl.exp(gap), 0.0)
    own_gap = tl.where(z > low, z - top, 0.0)
    own_z = tl.where(z > low, tl.exp(own_gap), 0.0)
    moment = e * (t + gap * s) + own_gap * own_z
    return high, i1, v2, sy * old + own, top, s * e + own_z, moment


@triton.jit
def sample_merge(
    logits, stride, heat, key, noise, part_f, part_i, ids, stats, splits,
    eos_a, eos_b, eos_c, eos_d,
    SPLITS2: tl.constexpr,
):  # fmt: skip
    """Grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, SPLITS2)
    ok = k < splits
    low = float("-inf")
    far: tl.constexpr = 2147483647
    T = tl.load(heat + row)
    bits = tl.load(key + row).to(tl.uint32, bitcast=True)
    f = part_f + (row * splits + k) * 6
    g = part_i + (row * splits + k) * 2
    v1 = tl.load(f, mask=ok, other=low)
    v2 = tl.load(f + 1, mask=ok, other=low)
    sy = tl.load(f + 2, mask=ok, other=0.0)
    m = tl.load(f + 3, mask=ok, other=low)
    s = tl.load(f + 4, mask=ok, other=0.0)
    t = tl.load(f + 5, mask=ok, other=0.0)
    i1 = tl.load(g, mask=ok, other=far)
    i2 = tl.load(g + 1, mask=ok, other=far)
    v1, first, v2, other, sy, _ = join_lanes(v1, i1, v2, i2, sy, sy)
    m, s, t = join_sums(m, s, t)
    token = first
    v1, token, v2, sy, m, s, t = take_eos(
        logits, row, stride, eos_a, T, bits, noise, v1, token, v2, sy, m, s, t)  # fmt: skip
    v1, token, v2, sy, m, s, t = take_eos(
        logits, row, stride, eos_b, T, bits, noise, v1, token, v2, sy, m, s, t)  # fmt: skip
    v1, token, v2, sy, m, s, t = take_eos(
        logits, row, stride, eos_c, T, bits, noise, v1, token, v2, sy, m, s, t)  # fmt: skip
    v1, token, v2, sy, m, s, t = take_eos(
        logits, row, stride, eos_d, T, bits, noise, v1, token, v2, sy, m, s, t)  # fmt: skip
    p1 = 1.0 / sy
    p2 = tl.where(v2 == low, 0.0, tl.exp(v2 - v1) / sy)
    alt = tl.where(token == first, other, first)
    entropy = tl.log(s) - t / s
    tl.store(ids + row * 2, token)
    tl.store(ids + row * 2 + 1, tl.where(alt == far, -1, alt))
    tl.store(stats + row * 5, p1)
    tl.store(stats + row * 5 + 1, p2)
    tl.store(stats + row * 5 + 2, p1 - p2)
    # Rounding can leave a confident row a hair below zero.
    tl.store(stats + row * 5 + 3, tl.where(entropy < 0, 0.0, entropy))
    tl.store(stats + row * 5 + 4, m + tl.log(s))
