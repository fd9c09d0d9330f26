"""Packed forwards for the kernel tests: rows of every mode, a poisoned pool, a literal oracle."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from hypothesis import strategies as st

from recguide_core.engine.rows import pack
from recguide_core.records import Row, Rows

MODES = ("prefill", "ar", "draft", "verify", "overlap", "tidar", "first", "loose")
"""`loose` is no method's: a block without a parent beside a causal row, which the rule allows."""


def mode_rows(mode: str, request: int, P: int, B: int, spots: tuple[int, ...]) -> list[Row]:
    """Rows of one request in one of the modes of the row table; `spots` are correction places."""

    def block(start: int, n: int, parent: int = -1, parent_len: int = 0) -> Row:
        return Row(request, np.zeros(n), start, parent, parent_len, bidirectional=True)

    if mode == "ar":
        return [Row(request, np.zeros(1), P, commit=True)]
    if mode == "draft":
        return [block(P, B)]
    main = Row(request, np.zeros(B), P, commit=True)
    if mode in ("prefill", "verify"):
        return [main]
    if mode == "loose":
        return [main, block(P, B)]
    if mode == "first":
        return [main, block(P + B, B, 0, B)]
    if mode == "tidar":
        return [main, *(block(P + i, B, 0, i) for i in range(1, B + 1))]
    return [main, *(block(P + p, B, 0, p) for p in sorted({min(s, B) for s in spots}))]


@dataclass
class Case:
    """Tensors of one packed forward; `rows` in packed order, parents as row indices."""

    rows: list[Row]
    prefix: list[int]
    q_ptr: list[int]
    vis: torch.Tensor
    q: torch.Tensor
    k_new: torch.Tensor
    v_new: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    pages: torch.Tensor
    page_ptr: torch.Tensor
    page: int

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k_new.shape[1]

    def dense(self) -> torch.Tensor:
        """float64 attention written from the row rule alone, row by row: no intervals."""
        starts = [0, *accumulate(len(np.asarray(r.tokens)) for r in self.rows)]
        T, H, D = self.q.shape
        out = torch.zeros(T, H, D, dtype=torch.float64)
        for i, row in enumerate(self.rows):
            s, e = starts[i], starts[i + 1]
            P = self.prefix[row.request]
            first = int(self.page_ptr[row.request])
            slots = [
                int(self.pages[first + j // self.page]) * self.page + j % self.page
                for j in range(P)
            ]
            ps = starts[row.parent] if row.parent >= 0 else 0
            for t in range(s, e):
                own = range(s, e) if row.bidirectional else range(s, t + 1)
                seen = [*range(ps, ps + row.parent_len), *own]
                K = torch.cat([self.k_pool[slots], self.k_new[seen]]).double()
                V = torch.cat([self.v_pool[slots], self.v_new[seen]]).double()
                for h in range(H):
                    kv = h // self.group
                    w = (K[:, kv] @ self.q[t, h].double() * D**-0.5).softmax(0)
                    out[t, h] = w @ V[:, kv]
        return out


def build(
    requests: list[tuple[str, int, int, tuple[int, ...]]],
    *,
    D: int = 64,
    group: int = 2,
    kv_heads: int = 1,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """A forward of requests (mode, P, B, spots); every slot that no prefix owns is NaN."""
    rows: list[Row] = []
    for r, (mode, P, B, spots) in enumerate(requests):
        lead = len(rows)
        for row in mode_rows(mode, r, P, B, spots):
            row.parent = lead if row.parent >= 0 else -1
            rows.append(row)
    prefix = [P for _, P, _, _ in requests]
    step = pack(Rows.of(rows), np.array(prefix))
    T, H = len(step.positions), group * kv_heads
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    # Strided views of one QKV projection, as the engine hands them over.
    qkv = normal(T, H + 2 * kv_heads, D)
    counts = [-(-P // page) for P in prefix]
    total = sum(counts) + 3
    order = torch.randperm(total, generator=g)[: max(1, sum(counts))].int()
    k_pool, v_pool = normal(total * page, kv_heads, D), normal(total * page, kv_heads, D)
    used = torch.zeros(total * page, dtype=torch.bool)
    ptr = [0, *accumulate(counts)]
    for r, P in enumerate(prefix):
        for j in range(P):
            used[int(order[ptr[r] + j // page]) * page + j % page] = True
    k_pool[~used] = float("nan")
    v_pool[~used] = float("nan")
    return Case(
        rows=rows,
        prefix=prefix,
        q_ptr=step.offset.tolist(),
        vis=torch.from_numpy(step.vis).int(),
        q=qkv[:, :H],
        k_new=qkv[:, H : H + kv_heads],
        v_new=qkv[:, H + kv_heads :],
        k_pool=k_pool,
        v_pool=v_pool,
        pages=order,
        page_ptr=torch.tensor(ptr, dtype=torch.int32),
        page=page,
    )


def requests_strategy(longest: int = 70) -> st.SearchStrategy:
    """1..3 requests in any mode; short prefixes, the empty one included."""
    prefix = st.one_of(st.sampled_from([0, 1, 15, 16, 17]), st.integers(0, longest))
    one = st.tuples(
        st.sampled_from([m for m in MODES if m != "tidar"]),
        prefix,
        st.sampled_from([2, 4, 8, 12]),
        st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    )
    tidar = st.tuples(st.just("tidar"), prefix, st.just(3), st.just(()))
    return st.lists(st.one_of(one, tidar), min_size=1, max_size=3)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of the truth; NaN poisons it."""
    return float((got.double() - want).norm() / want.norm())


class FakeCapture:
    """Graphs without a device: runs what it warms, records by keeping the callable."""

    def __init__(self, replay_of=lambda forward: forward) -> None:
        self.replay_of = replay_of

    def warm(self, forward) -> None:
        forward()

    def capture(self, forward):
        return self.replay_of(forward)
