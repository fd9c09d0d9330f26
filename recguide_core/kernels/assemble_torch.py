"""The next packed forward from state and plan, in torch: rows, positions, intervals.

Rows of a request, in this order: the draft row `[seed, MASK x (B-1)]` or the verify row
`[seed, d1 .. d(B-1)]`, then its branches. A branch is `[alt, MASK x (B-1)]` (correction) or
`[MASK x B]`, fully bidirectional, sees the first `parent` tokens of the verify row and starts at
position P + parent. No padding between rows: behind the last token everything is blank.
"""

from __future__ import annotations

import torch

from recguide_core.kernels.round_state import PackedRows, RoundPlan, RoundState
from recguide_core.records import Act


def assemble(state: RoundState, plan: RoundPlan, rows: PackedRows, mask_id: int) -> None:
    """Fill `rows` in place. Literal twin of `assemble_triton.assemble_rows`."""
    N = len(state.live)
    rows.ids.zero_()
    rows.pos.zero_()
    rows.vis.zero_()
    rows.adapter.zero_()
    rows.commit.zero_()
    rows.request.fill_(-1)
    at = 0
    for r in range(N):
        rows.q_ptr[r] = at
        act = int(plan.act[r]) if int(state.live[r]) else int(Act.IDLE)
        if act == Act.IDLE:
            continue
        B, P = int(plan.block[r]), int(state.committed[r])
        head = at
        verify = act == Act.VERIFY
        i = torch.arange(B, dtype=torch.int32, device=rows.ids.device)
        own = slice(at, at + B)
        if verify:
            rows.ids[own] = state.draft[r, :B]
            rows.commit[own] = 1
        else:
            rows.ids[own] = mask_id
            rows.adapter[own] = 1
        rows.ids[at] = state.seed[r]
        rows.pos[own] = P + i
        rows.vis[own, 0] = head
        rows.vis[own, 1] = head + i + 1 if verify else head + B
        rows.request[own] = r
        at += B
        for k in range(plan.kind.shape[1] if verify else 0):
            if int(plan.kind[r, k]) < 0:
                continue
            width, parent = int(plan.branch_block[r, k]), int(plan.parent[r, k])
            alt = int(plan.alt[r, k])
            i = torch.arange(width, dtype=torch.int32, device=rows.ids.device)
            own = slice(at, at + width)
            rows.ids[own] = mask_id
            if alt >= 0:
                rows.ids[at] = alt
            rows.pos[own] = P + parent + i
            rows.vis[own] = torch.tensor(
                [at, at + width, head, head + parent], dtype=torch.int32, device=rows.ids.device
            )
            rows.adapter[own] = 1
            rows.request[own] = r
            at += width
    rows.q_ptr[N] = at
