"""What every request does next (Triton): twin and rules in `choose_torch.choose`."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def choose_acts(
    live, has_draft, draft_block, remaining, room, margin, alt, target,
    act, block, kind, parent, branch_alt, branch_block,
    delta, corrections, continuation, tidar, K,
    MAX_B: tl.constexpr,
):  # fmt: skip
    """Grid (slots,): one program a request."""
    r = tl.program_id(0)
    wanted = tl.load(target + r)
    left = tl.load(remaining + r)
    space = tl.load(room + r)
    alive = (tl.load(live + r) != 0) & (space > 0)
    drafted = tl.load(has_draft + r) != 0
    B = tl.minimum(tl.where(drafted, tl.load(draft_block + r), wanted), space)
    plain = B < 2
    what = tl.where(drafted | plain, 2, 1)
    tl.store(act + r, tl.where(alive, what, 0))
    tl.store(block + r, tl.where(alive, tl.maximum(B, 1), 0))
    branching = alive & drafted & (plain == 0)

    for k in range(K):
        tl.store(kind + r * K + k, -1)
        tl.store(parent + r * K + k, 0)
        tl.store(branch_alt + r * K + k, -1)
        tl.store(branch_block + r * K + k, 0)
    if branching:
        used = 0
        if tidar != 0:
            for p in range(1, B + 1):
                if (p < left) & (p + wanted <= space) & (used < K):
                    tl.store(kind + r * K + used, 2)
                    tl.store(parent + r * K + used, p)
                    tl.store(branch_block + r * K + used, wanted)
                    used += 1
        else:
            i = tl.arange(0, MAX_B)
            m = tl.load(margin + r * MAX_B + i)
            risky = (i > 0) & (i < B) & (m < delta)
            count = tl.sum(risky.to(tl.int32), 0)
            after = 0
            for _ in range(corrections):
                p = tl.min(tl.where(risky & (i > after), i, MAX_B), 0)
                after = p
                fits = (p < MAX_B) & (p < left) & (p + wanted <= space)
                token = tl.load(alt + r * MAX_B + p, mask=fits, other=-1)
                if token >= 0:
                    tl.store(kind + r * K + used, 0)
                    tl.store(parent + r * K + used, p)
                    tl.store(branch_alt + r * K + used, token)
                    tl.store(branch_block + r * K + used, wanted)
                    used += 1
            if (continuation != 0) & (count <= 2) & (left > B) & (B + wanted <= space):
                tl.store(kind + r * K + used, 1)
                tl.store(parent + r * K + used, B)
                tl.store(branch_block + r * K + used, wanted)
