"""From a plan to the rows of a forward. No torch."""

from __future__ import annotations

import functools

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
    act = plan.act
    # Used branches come first.
    branched = (
        plan.branch_kind.shape[1] > 0 and max(plan.branch_kind[:, 0].tolist(), default=-1) >= 0
    )
    if not chunks and not branched and Act.IDLE not in act.tolist():
        return _one_row_each(plan, table, mask_id)
    active = act != Act.IDLE
    used = (plan.branch_kind >= 0) & (act == Act.VERIFY)[:, None]
    firsts = np.array([c.first_draft > 0 for c in chunks], dtype=np.int64)
    lead = starts_of(np.concatenate((1 + firsts, np.where(active, 1 + used.sum(1), 0))))
    rows = _blank_rows(int(lead[-1]))
    main = np.where(active, lead[len(chunks) : -1], -1)
    _place_main(rows, plan, table, main, active)
    alt = _place_branches(rows, plan, table, main, used)
    chunk_rows = lead[: len(chunks)].tolist()
    for c, row in zip(chunks, chunk_rows, strict=True):
        _place_chunk(rows, c, row)

    start = starts_of(rows.length)
    rows.tokens = np.full(int(start[-1]), mask_id, np.int64)
    for c, row in zip(chunks, chunk_rows, strict=True):
        rows.tokens[start[row] : start[row + 1]] = c.tokens
    _place_tokens(rows, start, plan, table, main)
    known = np.flatnonzero(alt >= 0)
    if len(known):
        rows.tokens[start[known]] = alt[known]
    return rows, main


def _one_row_each(plan: Plan, table: RequestTable, mask_id: int) -> tuple[Rows, IntArray]:
    """The steady state of plain methods: no prompt chunk, no branch, nobody idles."""
    act, who = plan.act, plan.who
    verify = act == Act.VERIFY
    main, orphan, nothing, everything = _columns(len(who))
    rows = Rows(
        request=who,
        length=plan.block,
        start=table.committed.take(who),
        parent=orphan,
        parent_len=nothing,
        bidirectional=~verify,
        adapter=act == Act.DRAFT,
        commit=verify,
        readout=everything,
        kind=_KIND_OF.take(act),
        tokens=nothing,
    )
    widths = plan.block.tolist()
    if len(set(widths)) == 1 and Act.VERIFY == min(act.tolist()) == max(act.tolist()):
        rows.tokens = table.draft[who, : widths[0]].ravel()
        return rows, main
    rows.tokens = np.full(sum(widths), mask_id, np.int64)
    _place_tokens(rows, starts_of(rows.length), plan, table, main)
    return rows, main


@functools.cache
def _columns(n: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Index, parent, parent_len and readout of n plain rows; shared, so never written to."""
    columns = np.arange(n), np.full(n, -1), np.zeros(n, np.int64), np.full(n, Readout.ALL, np.int64)
    for column in columns:
        column.flags.writeable = False
    return columns


def _place_main(
    rows: Rows, plan: Plan, table: RequestTable, main: IntArray, active: BoolArray
) -> None:
    """The verify or draft row of each planned request."""
    here, who, act = main[active], plan.who[active], plan.act[active]
    rows.request[here] = who
    rows.length[here] = plan.block[active]
    rows.start[here] = table.committed[who]
    rows.bidirectional[here] = act != Act.VERIFY
    rows.adapter[here] = act == Act.DRAFT
    rows.commit[here] = act == Act.VERIFY
    rows.kind[here] = _KIND_OF[act]


def _place_branches(
    rows: Rows, plan: Plan, table: RequestTable, main: IntArray, used: BoolArray
) -> IntArray:
    """Branch rows behind their verify rows; returns the token at slot 0 of each row, or -1."""
    alt = np.full(len(rows.length), -1, np.int64)
    owner, column = np.nonzero(used)
    if not len(owner):
        return alt
    at = main[owner] + 1 + column
    rows.request[at] = plan.who[owner]
    rows.length[at] = plan.branch_block[owner, column]
    rows.parent[at] = main[owner]
    rows.parent_len[at] = plan.branch_parent[owner, column]
    rows.start[at] = table.committed[plan.who[owner]] + rows.parent_len[at]
    rows.bidirectional[at] = rows.adapter[at] = True
    rows.kind[at] = RowKind.BRANCH
    alt[at] = plan.branch_alt[owner, column]
    return alt


def _place_chunk(rows: Rows, chunk: PrefillChunk, row: int) -> None:
    """A prompt chunk and the first draft beside it."""
    count = len(chunk.tokens)
    rows.request[row], rows.length[row], rows.start[row] = chunk.slot, count, chunk.first
    rows.commit[row], rows.kind[row] = True, RowKind.PREFILL
    rows.readout[row] = Readout.LAST if chunk.last else Readout.NONE
    if chunk.first_draft:
        side = row + 1
        rows.request[side], rows.length[side] = chunk.slot, chunk.first_draft
        rows.parent[side], rows.parent_len[side] = row, count
        rows.start[side] = chunk.first + count
        rows.bidirectional[side] = rows.adapter[side] = True
        rows.kind[side] = RowKind.BRANCH


def _place_tokens(
    rows: Rows, start: IntArray, plan: Plan, table: RequestTable, main: IntArray
) -> None:
    """[seed, d_1 .. d_(B-1)] into verify rows, the seed into draft rows."""
    verify = plan.act == Act.VERIFY
    if verify.any():
        row, slot = main[verify], plan.who[verify]
        width = rows.length[row]
        step = ragged_arange(width)
        at = np.repeat(start[row], width) + step
        rows.tokens[at] = table.draft[np.repeat(slot, width), step]
    drafting = (plan.act != Act.IDLE) & ~verify
    if drafting.any():
        rows.tokens[start[main[drafting]]] = table.seed[plan.who[drafting]]


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
