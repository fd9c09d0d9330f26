"""From a plan to the rows of a forward. No torch."""

from __future__ import annotations

import numpy as np

from recguide_core.engine.rows import PrefillChunk, ragged_arange, starts_of
from recguide_core.records import (
    Act,
    BoolArray,
    IntArray,
    Plan,
    Readout,
    RequestTable,
    RowKind,
    Rows,
)

_KIND_OF = np.array([RowKind.VERIFY, RowKind.DRAFT, RowKind.VERIFY, RowKind.DRAFTER])


def build_rows(
    plan: Plan, chunks: list[PrefillChunk], table: RequestTable, mask_id: int
) -> tuple[Rows, IntArray]:
    """Rows of a step: prompt chunks first, then each planned request; and the main-row index."""
    active = plan.act != Act.IDLE
    verify = plan.act == Act.VERIFY
    used = (plan.branch_kind >= 0) & verify[:, None]
    branches = used.sum(1)
    firsts = np.array([c.first_draft > 0 for c in chunks], dtype=np.int64)
    per_request = np.concatenate((1 + firsts, np.where(active, 1 + branches, 0))).astype(np.int64)
    lead = starts_of(per_request)
    n, nc = int(lead[-1]), len(chunks)

    rows = _blank_rows(n)
    chunk_rows = lead[:nc]
    main = np.where(active, lead[nc:-1], -1)
    here = main[active]
    who = plan.who[active]
    rows.request[here] = who
    rows.length[here] = plan.block[active]
    rows.start[here] = table.committed[who]
    act = plan.act[active]
    rows.bidirectional[here] = act != Act.VERIFY
    rows.adapter[here] = act == Act.DRAFT
    rows.commit[here] = act == Act.VERIFY
    rows.kind[here] = _KIND_OF[act]

    owner, column = np.nonzero(used)
    branch_rows = main[owner] + 1 + column
    rows.request[branch_rows] = plan.who[owner]
    rows.length[branch_rows] = plan.branch_block[owner, column]
    rows.parent[branch_rows] = main[owner]
    rows.parent_len[branch_rows] = plan.branch_parent[owner, column]
    rows.start[branch_rows] = table.committed[plan.who[owner]] + rows.parent_len[branch_rows]

    for c, row in zip(chunks, chunk_rows, strict=True):
        rows.request[row], rows.length[row], rows.start[row] = c.slot, len(c.tokens), c.first
        rows.commit[row], rows.kind[row] = True, RowKind.PREFILL
        rows.readout[row] = Readout.LAST if c.last else Readout.NONE
        if c.first_draft:
            rows.request[row + 1], rows.length[row + 1] = c.slot, c.first_draft
            rows.parent[row + 1], rows.parent_len[row + 1] = row, len(c.tokens)
            rows.start[row + 1] = c.first + len(c.tokens)
    side = rows.parent >= 0
    rows.bidirectional[side] = rows.adapter[side] = True
    rows.kind[side] = RowKind.BRANCH

    start = starts_of(rows.length)
    rows.tokens = np.full(int(start[-1]), mask_id, np.int64)
    for c, row in zip(chunks, chunk_rows, strict=True):
        rows.tokens[start[row] : start[row + 1]] = c.tokens
    _place_drafts(rows, start, here[verify[active]], who[verify[active]], table)
    drafting = here[~verify[active]]
    rows.tokens[start[drafting]] = table.seed[who[~verify[active]]]
    alt = plan.branch_alt[owner, column]
    rows.tokens[start[branch_rows[alt >= 0]]] = alt[alt >= 0]
    return rows, main


def _blank_rows(n: int) -> Rows:
    def ints(fill: int = 0) -> IntArray:
        return np.full(n, fill, np.int64)

    def flags() -> BoolArray:
        return np.zeros(n, bool)

    return Rows(
        request=ints(),
        length=ints(),
        start=ints(),
        parent=ints(-1),
        parent_len=ints(),
        bidirectional=flags(),
        adapter=flags(),
        commit=flags(),
        readout=ints(Readout.ALL),
        kind=ints(),
        tokens=np.empty(0, np.int64),
    )


def _place_drafts(
    rows: Rows, start: IntArray, row: IntArray, slot: IntArray, table: RequestTable
) -> None:
    """Fill verify rows with [seed, d_1 .. d_(B-1)]."""
    width = rows.length[row]
    step = ragged_arange(width)
    rows.tokens[np.repeat(start[row], width) + step] = table.draft[np.repeat(slot, width), step]
