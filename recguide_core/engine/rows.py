"""From rows to the arrays that a forward takes. No torch.

One layout for every mode: rows of a request are adjacent, its commit row first. The only
attention rule (committed prefix, `parent_len` tokens of the parent row, own row) becomes two
visible intervals per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.engine.row_checks import check_rows
from recguide_core.records import (
    BoolArray,
    IntArray,
    Readout,
    RowKind,
    Rows,
    StepShape,
)


def ragged_arange(lengths: IntArray) -> IntArray:
    """0..lengths[0]-1, 0..lengths[1]-1, ... in one int64 array."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) - np.repeat(ends - lengths, lengths))


def starts_of(lengths: IntArray) -> IntArray:
    """Exclusive prefix sum, with the total at the end: int64 [n + 1]."""
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


@dataclass(slots=True)
class PrefillChunk:
    """A piece of a prompt to commit, tokens [first, first + n) of the request in `slot`.

    Attributes:
        last: the prompt ends here; its last token is read out.
        first_draft: B of a first draft made beside it, 0 for none.
    """

    slot: int
    first: int
    tokens: IntArray
    last: bool
    first_draft: int = 0


@dataclass(slots=True)
class PackedStep:
    """Rows of one forward with everything derived from them (host side).

    Attributes:
        rows: the rows; `row_start`: first packed token of each row, int64 [n + 1].
        positions: int64 [T]; `vis`: visible in-flight intervals (a0, a1, b0, b1), int64 [T, 4].
        slots: requests in packed order, int64 [R]; `offset`: their first token, int64 [R + 1];
            `prefix`: committed tokens P of each, int64 [R].
        readout: packed indices of the tokens with logits, int64 [Q]; `read_start`: index into
            it of each row's first readout, int64 [n + 1].
        ahead: 1 where a readout predicts the next position (causal), 0 its own, int64 [Q].
        chunks: the prompt chunks, each the main row of its request.
        main: row index of each plan entry's verify or draft row, -1 when idle, int64 [n].
        shape: size of the forward, its kv_tokens left at 0 (see `shape_of`).
        drafter: some rows are the second model's.
    """

    rows: Rows
    row_start: IntArray
    positions: IntArray
    vis: IntArray
    slots: IntArray
    offset: IntArray
    prefix: IntArray
    readout: IntArray
    read_start: IntArray
    ahead: IntArray
    chunks: list[PrefillChunk]
    main: IntArray
    shape: StepShape
    drafter: bool

    @property
    def target(self) -> IntArray:
        """Position that each readout predicts, int64 [Q]."""
        return np.asarray(self.positions[self.readout] + self.ahead)

    @property
    def adapter_tokens(self) -> BoolArray:
        return np.repeat(self.rows.adapter, self.rows.length)


@dataclass(frozen=True, slots=True)
class _Structure:
    """The part of a packed step that does not depend on tokens, positions or prefixes."""

    row_start: IntArray
    within: IntArray
    vis: IntArray
    slots: IntArray
    offset: IntArray
    readout: IntArray
    read_start: IntArray
    ahead: IntArray
    shape: StepShape
    drafter: bool


_DRAFTER = int(RowKind.DRAFTER)
_REMEMBERED = 512
_STRUCTURE = (
    "request",
    "length",
    "parent",
    "parent_len",
    "bidirectional",
    "adapter",
    "commit",
    "readout",
    "kind",
)
_structures: dict[bytes, _Structure] = {}


def _structure(rows: Rows) -> _Structure:
    """Derived once per structure: in steady state the rows of a step look like the last one's."""
    key = b"".join(getattr(rows, name).tobytes() for name in _STRUCTURE)
    known = _structures.get(key)
    if known is None:
        if len(_structures) >= _REMEMBERED:
            _structures.clear()
        known = _structures[key] = _derive(rows)
    return known


def _derive(rows: Rows) -> _Structure:
    check_rows(rows)
    start = starts_of(rows.length)
    total = int(start[-1])
    within = ragged_arange(rows.length)
    index = np.arange(total)
    bidirectional = np.repeat(rows.bidirectional, rows.length)
    vis = np.empty((total, 4), np.int64)
    vis[:, 0] = index - within
    vis[:, 1] = np.where(bidirectional, vis[:, 0] + np.repeat(rows.length, rows.length), index + 1)
    parent_start = np.where(rows.parent >= 0, start[:-1][rows.parent], 0)
    vis[:, 2] = np.repeat(parent_start, rows.length)
    vis[:, 3] = vis[:, 2] + np.repeat(rows.parent_len, rows.length)
    leads = np.concatenate(([0], np.flatnonzero(np.diff(rows.request)) + 1)).astype(np.int64)
    wanted = np.repeat(rows.readout == Readout.ALL, rows.length)
    wanted[start[1:][rows.readout == Readout.LAST] - 1] = True
    readout = np.flatnonzero(wanted)
    counts = np.where(
        rows.readout == Readout.ALL, rows.length, (rows.readout == Readout.LAST).astype(np.int64)
    )
    return _Structure(
        row_start=start,
        within=within,
        vis=vis,
        slots=rows.request[leads],
        offset=np.append(start[leads], total),
        readout=readout,
        read_start=starts_of(counts),
        ahead=(~bidirectional[readout]).astype(np.int64),
        shape=_shape(rows, len(leads)),
        drafter=bool((rows.kind == _DRAFTER).any()),
    )


def pack(
    rows: Rows,
    prefix_of: IntArray,
    chunks: list[PrefillChunk] | None = None,
    main: IntArray | None = None,
) -> PackedStep:
    """Derive positions, intervals and read-out indices of rows.

    Args:
        prefix_of: committed tokens P by slot, int64 [N].
    """
    known = _structure(rows)
    positions = rows.start.repeat(rows.length)
    positions += known.within
    return PackedStep(
        rows=rows,
        row_start=known.row_start,
        positions=positions,
        vis=known.vis,
        slots=known.slots,
        offset=known.offset,
        prefix=prefix_of.take(known.slots),
        readout=known.readout,
        read_start=known.read_start,
        ahead=known.ahead,
        chunks=chunks or [],
        main=np.empty(0, np.int64) if main is None else main,
        shape=known.shape,
        drafter=known.drafter,
    )


def split_drafter(step: PackedStep) -> tuple[PackedStep | None, PackedStep | None, BoolArray]:
    """The target's part of a step, the drafter's part, and which readouts are the drafter's.

    A request's rows go to one of the two models, so the parts share nothing.
    """
    drafter = step.rows.kind == _DRAFTER
    counts = np.diff(step.read_start)
    theirs = np.repeat(drafter, counts)
    if not drafter.any():
        return step, None, theirs
    part = take_rows(step, drafter)
    return (None if drafter.all() else take_rows(step, ~drafter)), part, theirs


def take_rows(step: PackedStep, kept: BoolArray, *, orphans: bool = False) -> PackedStep:
    """The step of some of its rows.

    Args:
        orphans: cut the ties to parents, some of which may be left out; for read-outs only.
    """
    rows = step.rows
    place = np.cumsum(kept) - 1
    columns = {
        name: getattr(rows, name)[kept]
        for name in Rows.__dataclass_fields__
        if name not in ("tokens", "parent")
    }
    parent = rows.parent[kept]
    if orphans:
        parent, columns["parent_len"] = parent * 0 - 1, parent * 0
    prefix = np.zeros(int(rows.request.max()) + 1, np.int64)
    prefix[step.slots] = step.prefix
    chosen = Rows(
        **columns,
        parent=np.where(parent >= 0, place[parent], -1),
        tokens=rows.tokens[np.repeat(kept, rows.length)],
    )
    return pack(chosen, prefix)


def shapes_of(step: PackedStep) -> list[StepShape]:
    """The forwards of a step as the cost table knows them: the target's, and the drafter's."""
    if not step.drafter:
        return [shape_of(step)]
    target, drafter, _ = split_drafter(step)
    return [shape_of(part) for part in (target, drafter) if part is not None]


def shape_of(step: PackedStep) -> StepShape:
    """One forward as the cost table knows it."""
    one, kv = step.shape, sum(step.prefix.tolist())
    return StepShape(one.kind, one.requests, one.query_tokens, kv, one.block_size, one.branches)


def _shape(rows: Rows, requests: int) -> StepShape:
    kinds = rows.kind
    branches = int((kinds == RowKind.BRANCH).sum())
    prefill = bool((kinds == RowKind.PREFILL).any())
    draft = bool((kinds == RowKind.DRAFT).any())
    verify = kinds == RowKind.VERIFY
    if prefill:
        kind = "mixed" if draft or verify.any() or branches else "prefill"
    elif draft and verify.any():
        kind = "mixed"
    elif branches:
        kind = "fused"
    elif draft:
        kind = "draft"
    elif (kinds == RowKind.DRAFTER).all():
        kind = "drafter"
    else:
        kind = "ar" if int(rows.length.max()) == 1 else "verify"
    decode = rows.length[kinds != RowKind.PREFILL]
    return StepShape(
        kind=kind,
        requests=requests,
        query_tokens=int(rows.length.sum()),
        kv_tokens=0,
        block_size=int(decode.max()) if len(decode) else 0,
        branches=branches,
    )
