"""Forwards of a given shape: rows of requests without an engine, on random pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.kernels.step_buffers import HostRows


@dataclass(frozen=True, slots=True)
class RequestShape:
    """One request's part of a forward.

    Attributes:
        context: committed tokens P; tokens: of its main row.
        draft: the main row is bidirectional with the adapter, else causal and committed.
        branches: (parent_len, tokens) of each branch row.
    """

    context: int
    tokens: int
    draft: bool = False
    branches: tuple[tuple[int, int], ...] = ()

    @property
    def query_tokens(self) -> int:
        return self.tokens + sum(n for _, n in self.branches)


def fused(context: int, B: int, branches: int) -> RequestShape:
    """A verify row with the continuation and corrections in the first half of the block."""
    places = (max(1, B // 4), max(1, B // 2), B)[3 - branches :] if branches else ()
    return RequestShape(context, B, branches=tuple((p, B) for p in places))


def host_rows(
    requests: list[RequestShape], *, page: int, vocab: int, mask_id: int, seed: int = 0
) -> HostRows:
    """Pack requests: ids drawn at random, MASK where a row drafts, pages in random order."""
    rng = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {n: [] for n in ("ids", "pos", "vis", "adapter", "commit")}
    offset, at = [0], 0
    for request in requests:
        head = at
        rows = [(0, request.tokens, request.draft), *((p, n, True) for p, n in request.branches)]
        for i, (parent, n, bidirectional) in enumerate(rows):
            step = np.arange(n)
            ids = np.full(n, mask_id) if bidirectional else rng.integers(4, vocab, n)
            if i == 0:
                ids[0] = rng.integers(4, vocab)
            end = np.full(n, at + n) if bidirectional else at + step + 1
            blank = np.zeros(n, np.int64)
            parts["ids"].append(ids)
            parts["pos"].append(request.context + parent + step)
            parts["vis"].append(np.stack([blank + at, end, blank + head, blank + head + parent], 1))
            parts["adapter"].append(blank + bidirectional)
            parts["commit"].append(blank + (not bidirectional))
            at += n
        offset.append(at)
    counts = [-(-(r.context + r.tokens) // page) for r in requests]
    order = rng.permutation(sum(counts))
    pages = np.split(order, np.cumsum(counts)[:-1])
    joined = {n: np.concatenate(v) for n, v in parts.items()}
    return HostRows(
        **joined,
        offset=np.array(offset, dtype=np.int64),
        prefix=np.array([r.context for r in requests]),
        pages=[p.tolist() for p in pages],
    )


def page_count(rows: HostRows) -> int:
    """Pages that a pool needs for these rows."""
    return sum(len(p) for p in rows.pages)
