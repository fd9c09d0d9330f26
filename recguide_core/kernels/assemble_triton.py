"""The next packed forward from state and plan (Triton): one program a request, no host read.

Tensors as in `round_state`; twin `assemble_torch.assemble`. Every program sums the sizes of the
requests before its own, so no scan kernel is needed. The last program blanks the padding up to
`capacity`. Rows that would end beyond it are cut: the runner picks the bucket so that none does.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def put_row(ids, pos, vis, adapter, commit, request, at, ok, token, position, a0, a1, b0, b1,
            lora, keep, r):  # fmt: skip
    """Store one vector of packed tokens."""
    tl.store(ids + at, token, mask=ok)
    tl.store(pos + at, position, mask=ok)
    tl.store(vis + at * 4, a0, mask=ok)
    tl.store(vis + at * 4 + 1, a1, mask=ok)
    tl.store(vis + at * 4 + 2, b0, mask=ok)
    tl.store(vis + at * 4 + 3, b1, mask=ok)
    tl.store(adapter + at, lora, mask=ok)
    tl.store(commit + at, keep, mask=ok)
    tl.store(request + at, r, mask=ok)


@triton.jit
def assemble_rows(
    live, committed, seed, draft, act, block, kind, parent, alt, branch_block,
    ids, pos, vis, adapter, commit, request, q_ptr,
    slots, capacity, mask_id, K,
    MAX_B: tl.constexpr, N2: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Grid (slots,); N2 >= slots, a power of two; MAX_B a power of two."""
    r = tl.program_id(0)
    n = tl.arange(0, N2)
    known = n < slots
    n_act = tl.load(act + n, mask=known, other=0)
    n_act = tl.where(tl.load(live + n, mask=known, other=0) != 0, n_act, 0)
    size = tl.where(n_act > 0, tl.load(block + n, mask=known, other=0), 0)
    for k in range(K):
        has = known & (n_act == 2) & (tl.load(kind + n * K + k, mask=known, other=-1) >= 0)
        size += tl.where(has, tl.load(branch_block + n * K + k, mask=known, other=0), 0)
    head = tl.sum(tl.where(n < r, size, 0), 0)
    mine = tl.sum(tl.where(n == r, size, 0), 0)
    my_act = tl.sum(tl.where(n == r, n_act, 0), 0)
    tl.store(q_ptr + r, tl.minimum(head, capacity))

    if my_act > 0:
        B = tl.load(block + r)
        P = tl.load(committed + r)
        verify = my_act == 2
        i = tl.arange(0, MAX_B)
        at = head + i
        ok = (i < B) & (at < capacity)
        drafted = tl.load(draft + r * MAX_B + i, mask=ok & verify, other=0)
        token = tl.where(verify, drafted, mask_id)
        token = tl.where(i == 0, tl.load(seed + r), token)
        a1 = tl.where(verify, at + 1, head + B)
        keep = tl.where(verify, 1, 0)
        put_row(ids, pos, vis, adapter, commit, request, at, ok, token, P + i,
                head, a1, 0, 0, 1 - keep, keep, r)  # fmt: skip
        row = head + B
        for k in range(K):
            has = verify & (tl.load(kind + r * K + k) >= 0)
            width = tl.where(has, tl.load(branch_block + r * K + k), 0)
            sees = tl.load(parent + r * K + k)
            other = tl.load(alt + r * K + k)
            at = row + i
            ok = (i < width) & (at < capacity)
            token = tl.where((i == 0) & (other >= 0), other, mask_id)
            put_row(ids, pos, vis, adapter, commit, request, at, ok, token, P + sees + i,
                    row, row + width, head, head + sees, 1, 0, r)  # fmt: skip
            row += width

    if r == slots - 1:
        end = tl.minimum(head + mine, capacity)
        tl.store(q_ptr + slots, end)
        for start in range(end, capacity, STEP):
            at = start + tl.arange(0, STEP)
            ok = at < capacity
            put_row(ids, pos, vis, adapter, commit, request, at, ok, 0, 0, 0, 0, 0, 0, 0, 0, -1)
