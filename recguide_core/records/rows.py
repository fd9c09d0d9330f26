"""The rows of a packed step, and the size of its forward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.records.kinds import BoolArray, IntArray, Readout, RowKind


@dataclass(slots=True)
class Row:
    """One row of a forward; the struct-of-arrays form of many is `Rows`.

    A query of this row sees the request's committed prefix [0, P), the first `parent_len`
    tokens of row `parent`, and its own row (causally, or fully when `bidirectional`).
    """

    request: int
    tokens: npt.ArrayLike
    start: int
    parent: int = -1
    parent_len: int = 0
    bidirectional: bool = False
    adapter: bool = False
    commit: bool = False
    readout: Readout = Readout.ALL
    kind: RowKind = RowKind.VERIFY


@dataclass(slots=True)
class Rows:
    """All rows of one forward, struct of arrays: n rows, T tokens.

    Rows of a request are adjacent and its commit row comes first, so that in-flight K/V of that
    row land at positions P, P+1, ... of the request.

    Attributes:
        request: slot of each row's request, int64 [n].
        length, start: query tokens and first position id, int64 [n].
        parent: index of the parent row or -1, int64 [n]; `parent_len` int64 [n].
        bidirectional, adapter, commit: bool [n].
        readout: `Readout` values, int64 [n]; `kind`: `RowKind` values, int64 [n].
        tokens: packed token ids, int64 [T].
    """

    request: IntArray
    length: IntArray
    start: IntArray
    parent: IntArray
    parent_len: IntArray
    bidirectional: BoolArray
    adapter: BoolArray
    commit: BoolArray
    readout: IntArray
    kind: IntArray
    tokens: IntArray

    @classmethod
    def of(cls, rows: list[Row]) -> Rows:
        """Pack single rows (prompt chunks, tests)."""
        tokens = [np.asarray(r.tokens, dtype=np.int64) for r in rows]

        def column(name: str) -> IntArray:
            return np.array([int(getattr(r, name)) for r in rows], dtype=np.int64)

        return cls(
            request=column("request"),
            length=np.array([len(t) for t in tokens], dtype=np.int64),
            start=column("start"),
            parent=column("parent"),
            parent_len=column("parent_len"),
            bidirectional=column("bidirectional").astype(bool),
            adapter=column("adapter").astype(bool),
            commit=column("commit").astype(bool),
            readout=column("readout"),
            kind=column("kind"),
            tokens=np.concatenate(tokens) if tokens else np.empty(0, np.int64),
        )


@dataclass(frozen=True, slots=True)
class StepShape:
    """Size of one forward, as the cost table knows it.

    Attributes:
        kind: prefill | ar | draft | verify | fused | mixed | drafter (the second model's).
        requests: requests with rows in the forward.
        query_tokens: packed tokens; `kv_tokens`: committed prefix tokens read, summed.
        block_size: largest block in the forward; `branches`: branch rows in it.
    """

    kind: str
    requests: int
    query_tokens: int
    kv_tokens: int
    block_size: int
    branches: int
