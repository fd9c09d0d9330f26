"""Plans to packed rows, and the attention rule as intervals, against one row written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.engine.build import build_rows
from recguide_core.engine.rows import PrefillChunk, pack
from recguide_core.kernels.attention_torch import in_flight_mask
from recguide_core.records import (
    MAX_BLOCK,
    Act,
    BranchKind,
    Plan,
    Readout,
    RequestTable,
    Row,
    RowKind,
    Rows,
)

SLOTS, MASK = 10, 99


@st.composite
def row_lists(draw) -> list[Row]:
    """Any list of rows that the rule allows: distinct requests, a main row, children of it."""
    rows: list[Row] = []
    for slot in draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, 5))]:
        start, n = draw(st.integers(0, 50)), draw(st.integers(1, 9))
        tokens = list(range(n))
        readout = draw(st.sampled_from(list(Readout)))
        if draw(st.booleans()):
            rows.append(Row(slot, tokens, start, bidirectional=True, readout=readout))
            continue
        lead = len(rows)
        rows.append(Row(slot, tokens, start, commit=draw(st.booleans()), readout=readout))
        for _ in range(draw(st.integers(0, 3))):
            seen, size = draw(st.integers(1, n)), draw(st.integers(1, 7))
            rows.append(
                Row(
                    slot,
                    [MASK] * size,
                    start + seen,
                    lead,
                    seen,
                    bidirectional=draw(st.booleans()),
                    readout=draw(st.sampled_from(list(Readout))),
                )
            )
    return rows


def seen_by(rows: list[Row], index: int, place: int) -> set[int]:
    """In-flight tokens, as packed indices, that token `place` of row `index` sees."""
    first = np.concatenate(([0], np.cumsum([len(r.tokens) for r in rows]))).tolist()
    row = rows[index]
    upto = len(row.tokens) if row.bidirectional else place + 1
    own = set(range(first[index], first[index] + upto))
    if row.parent < 0:
        return own
    return own | set(range(first[row.parent], first[row.parent] + row.parent_len))


@given(row_lists())
@settings(max_examples=150, deadline=None)
def test_intervals_are_the_rule(rows):
    prefix = np.arange(SLOTS) * 3
    step = pack(Rows.of(rows), prefix)
    mask = in_flight_mask(step.vis, 0, len(step.positions))
    packed = 0
    for i, row in enumerate(rows):
        for place in range(len(row.tokens)):
            assert set(np.flatnonzero(mask[packed]).tolist()) == seen_by(rows, i, place)
            assert step.positions[packed] == row.start + place
            packed += 1
    assert packed == len(step.positions)
    assert step.prefix.tolist() == prefix[step.slots].tolist()


@given(row_lists())
@settings(max_examples=150, deadline=None)
def test_readouts_and_their_targets(rows):
    step = pack(Rows.of(rows), np.zeros(SLOTS, np.int64))
    first = step.row_start
    for i, row in enumerate(rows):
        wanted = {Readout.NONE: [], Readout.LAST: [len(row.tokens) - 1]}.get(
            row.readout, range(len(row.tokens))
        )
        span = slice(step.read_start[i], step.read_start[i + 1])
        assert step.readout[span].tolist() == [first[i] + t for t in wanted]
        shift = 0 if row.bidirectional else 1
        assert step.target[span].tolist() == [row.start + t + shift for t in wanted]


@given(row_lists())
@settings(max_examples=60, deadline=None)
def test_requests_are_adjacent_and_keep_their_order(rows):
    step = pack(Rows.of(rows), np.zeros(SLOTS, np.int64))
    order = list(dict.fromkeys(r.request for r in rows))
    assert step.slots.tolist() == order
    for k, slot in enumerate(order):
        count = sum(len(r.tokens) for r in rows if r.request == slot)
        assert step.offset[k + 1] - step.offset[k] == count


def test_a_structure_seen_before_is_packed_with_new_tokens_positions_and_prefixes():
    for start in (4, 30):
        rows = [Row(1, [start, 2], start, commit=True), Row(3, [7], 9, commit=True)]
        prefix = np.array([0, start, 0, 9])
        step = pack(Rows.of(rows), prefix)
        assert step.positions.tolist() == [start, start + 1, 9]
        assert step.target.tolist() == [start + 1, start + 2, 10]
        assert step.prefix.tolist() == [start, 9]
        assert step.rows.tokens.tolist() == [start, 2, 7]


def good() -> list[Row]:
    return [
        Row(0, [1, 2, 3], 5, commit=True),
        Row(0, [MASK] * 3, 7, 0, 2, bidirectional=True),
        Row(1, [4, MASK], 2, bidirectional=True),
    ]


def _parent_sideways(rows):
    rows[1].parent, rows[1].parent_len = 2, 1


def _grandchild(rows):
    rows.insert(2, Row(0, [MASK], 8, 1, 1, bidirectional=True))
    rows[1].bidirectional = False


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: setattr(rows[0], "bidirectional", True),
        lambda rows: setattr(rows[2], "commit", True),
        lambda rows: setattr(rows[1], "parent_len", 4),
        lambda rows: setattr(rows[1], "parent_len", 0),
        lambda rows: (
            setattr(rows[1], "commit", True),
            setattr(rows[1], "bidirectional", False),
        ),
        lambda rows: setattr(rows[2], "tokens", []),
        lambda rows: rows.append(Row(0, [1], 9)),
        lambda rows: rows.insert(0, Row(0, [1], 5, bidirectional=True)),
        lambda rows: setattr(rows[2], "parent_len", 1),
        _parent_sideways,
        _grandchild,
    ],
)
def test_rows_that_break_the_rule_are_caught(spoil):
    rows = good()
    pack(Rows.of(rows), np.zeros(4, np.int64))
    spoil(rows)
    with pytest.raises(AssertionError):
        pack(Rows.of(rows), np.zeros(4, np.int64))


# -- from a plan ----------------------------------------------------------------------------


@st.composite
def steps(draw):
    """(plan, chunks, table): whatever a planner and the scheduler may ask for."""
    table = RequestTable.sized(SLOTS)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    order = draw(st.permutations(range(SLOTS)))
    planned, chunked = order[: draw(st.integers(0, 5))], order[5 : 5 + draw(st.integers(0, 3))]
    table.committed[:] = rng.integers(1, 40, SLOTS)
    table.seed[:] = rng.integers(0, 50, SLOTS)
    table.draft[:] = rng.integers(0, 50, (SLOTS, MAX_BLOCK))
    table.draft[:, 0] = table.seed
    width = draw(st.integers(0, 4))
    plan = Plan.empty(np.array(planned, dtype=np.int64), width)
    acts = [Act.IDLE, Act.DRAFT, Act.VERIFY, Act.DRAFTER]
    for i in range(len(planned)):
        plan.act[i] = draw(st.sampled_from(acts))
        plan.block[i] = draw(st.integers(1, MAX_BLOCK))
        for k in range(draw(st.integers(0, width))):
            kind = draw(
                st.sampled_from(
                    [BranchKind.CORRECTION, BranchKind.CONTINUATION, BranchKind.POSITION]
                )
            )
            plan.branch_kind[i, k] = kind
            whole = kind == BranchKind.CONTINUATION
            plan.branch_parent[i, k] = (
                plan.block[i] if whole else rng.integers(1, plan.block[i] + 1)
            )
            plan.branch_alt[i, k] = rng.integers(0, 50) if kind == BranchKind.CORRECTION else -1
            plan.branch_block[i, k] = rng.integers(1, MAX_BLOCK + 1)
    chunks = []
    for slot in chunked:
        tokens = rng.integers(0, 50, int(rng.integers(1, 20)))
        last = bool(rng.random() < 0.5)
        first_draft = int(rng.choice([0, 2, 16])) if last else 0
        chunks.append(PrefillChunk(slot, int(table.committed[slot]), tokens, last, first_draft))
    return plan, chunks, table


def written_out(plan: Plan, chunks: list[PrefillChunk], table: RequestTable):
    """The rows of a step, one by one, from the table of modes in the architecture."""
    rows: list[Row] = []
    for c in chunks:
        lead, n = len(rows), len(c.tokens)
        readout = Readout.LAST if c.last else Readout.NONE
        rows.append(
            Row(c.slot, c.tokens, c.first, commit=True, readout=readout, kind=RowKind.PREFILL)
        )
        if c.first_draft:
            rows.append(
                Row(
                    c.slot,
                    [MASK] * c.first_draft,
                    c.first + n,
                    lead,
                    n,
                    bidirectional=True,
                    adapter=True,
                    kind=RowKind.BRANCH,
                )
            )
    main = []
    for i, slot in enumerate(plan.who.tolist()):
        P, B, act = int(table.committed[slot]), int(plan.block[i]), plan.act[i]
        main.append(-1 if act == Act.IDLE else len(rows))
        if act in (Act.DRAFT, Act.DRAFTER):
            rows.append(
                Row(
                    slot,
                    [table.seed[slot]] + [MASK] * (B - 1),
                    P,
                    bidirectional=True,
                    adapter=act == Act.DRAFT,
                    kind=RowKind.DRAFT if act == Act.DRAFT else RowKind.DRAFTER,
                )
            )
        if act != Act.VERIFY:
            continue
        rows.append(Row(slot, table.draft[slot, :B], P, commit=True, kind=RowKind.VERIFY))
        for k in np.flatnonzero(plan.branch_kind[i] >= 0):
            seen, alt = int(plan.branch_parent[i, k]), int(plan.branch_alt[i, k])
            own = [MASK] * int(plan.branch_block[i, k])
            if alt >= 0:
                own[0] = alt
            rows.append(
                Row(
                    slot,
                    own,
                    P + seen,
                    main[-1],
                    seen,
                    bidirectional=True,
                    adapter=True,
                    kind=RowKind.BRANCH,
                )
            )
    return rows, main


@given(steps())
@settings(max_examples=200, deadline=None)
def test_build_rows_is_the_table_of_modes(step):
    plan, chunks, table = step
    rows, main = build_rows(plan, chunks, table, MASK)
    want, want_main = written_out(plan, chunks, table)
    assert main.tolist() == want_main
    packed = Rows.of(want)
    for name in Rows.__dataclass_fields__:
        assert np.array_equal(getattr(rows, name), getattr(packed, name)), name
    if len(rows.length):
        pack(rows, table.committed)
