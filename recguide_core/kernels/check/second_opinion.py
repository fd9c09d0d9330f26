"""Our attention beside FlashInfer's on uniform rows: same values, and both times."""

from __future__ import annotations

import numpy as np
import torch

from recguide_core.kernels.attention_torch import PackedLayout
from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.correctness import ATTENTION_LIMIT, geometry
from recguide_core.kernels.flashinfer_ranges import FlashInferAttention, ranges_plan
from recguide_core.kernels.ops import PageTable
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kvcache import KVPool

PAGE = 16


def compare(bench: Bench) -> None:
    """Verify and draft batches at several sizes."""
    cases: tuple[tuple[int, int, int, bool], ...] = (
        (1, 16, 2048, False),
        (8, 8, 800, True),
        (32, 16, 800, False),
    )
    if bench.tiny:
        cases = ((1, 5, 33, False), (3, 4, 20, True))
    for C, B, P, draft in cases:
        if bench.spent:
            return
        _one(bench, C, B, P, draft)


def _one(bench: Bench, C: int, B: int, P: int, draft: bool) -> None:
    g = geometry(bench, PAGE)
    pool = KVPool(
        layers=1, kv_heads=g.kv_heads, head_dim=g.head_dim, tokens=C * (P + 2 * B + PAGE),
        page_size=PAGE, device=bench.device, dtype=bench.dtype,
    )  # fmt: skip
    for r in range(C):
        pool.reserve(r, P + B)
    pool.k[0].normal_()
    pool.v[0].normal_()
    T = C * B
    offset = np.arange(C + 1) * B
    index = np.arange(T)
    lead = index - index % B
    end = lead + B if draft else index + 1
    vis = np.stack([lead, end, index * 0, index * 0], 1)
    layout = PackedLayout(np.arange(C), offset, np.full(C, P), vis)
    shape = (T, g.heads + 2 * g.kv_heads, g.head_dim)
    qkv = torch.randn(shape, device=bench.device).to(bench.dtype)
    q, k, v = qkv[:, : g.heads], qkv[:, g.heads : -g.kv_heads], qkv[:, -g.kv_heads :]
    theirs = FlashInferAttention(pool, g.group)
    theirs.prepare(ranges_plan(layout, pool))
    want = theirs.attend(0, q, k, v).view(T, g.heads, g.head_dim)
    table = PageTable(
        torch.tensor([p for r in range(C) for p in pool.page_list(r)], dtype=torch.int32).to(
            bench.device
        ),
        torch.tensor(
            np.concatenate(([0], np.cumsum([len(pool.page_list(r)) for r in range(C)]))),
            dtype=torch.int32,
        ).to(bench.device),
        PAGE,
    )
    ops = TritonRoundOps(g, T, C, bench.device, bench.processors, exact=bench.tiny)
    ops.prepare(
        torch.tensor(offset, dtype=torch.int32, device=bench.device),
        torch.full((C,), P, dtype=torch.int32, device=bench.device),
    )
    out = torch.empty_like(want)
    seen = torch.tensor(vis, dtype=torch.int32, device=bench.device)

    def ours() -> None:
        ops.attend_rows(q, k, v, seen, table, pool.k[0], pool.v[0], out)

    ours_ms, _, _ = bench.time_ms(ours)
    theirs_ms, _, _ = bench.time_ms(lambda: theirs.attend(0, q, k, v))
    error = float((out.float() - want.float()).norm() / want.float().norm())
    bench.note("flashinfer", C=C, B=B, P=P, draft=draft, error=error, ours_us=ours_ms * 1e3,
               theirs_us=theirs_ms * 1e3, ok=error < ATTENTION_LIMIT)  # fmt: skip
