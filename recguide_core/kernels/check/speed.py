"""Attention and read-out against their floors; a forward eager against replayed."""

from __future__ import annotations

import time
from functools import partial

import torch

from recguide_core.kernels import launch
from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.correctness import geometry
from recguide_core.kernels.check.costs import PAGE, Point, uniform
from recguide_core.kernels.check.models import random_pools
from recguide_core.kernels.check.roundtrip import rank_of
from recguide_core.kernels.check.shapes import host_rows, page_count
from recguide_core.kernels.device_forward import DeviceForward, geometry_of
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import split_qkv
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kernels.roofline import gpu
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.step_buffers import StepBuffers
from recguide_core.model.transformer import Transformer

LAYERS = 6
"""Different K/V per launch: a second launch must not find the first one's prefix in L2."""


def bandwidth(bench: Bench) -> None:
    """What a copy reaches: the byte floor's denominator."""
    size = 1 << (20 if bench.tiny else 30)
    a = torch.empty(size, dtype=torch.uint8, device=bench.device)
    b = torch.empty_like(a)
    ms, _, _ = bench.time_ms(lambda: b.copy_(a))
    bench.note("speed", what="copy", tb_per_s=2 * size / ms / 1e9)


def speed(bench: Bench) -> None:
    """Tile configurations by shape; then the vocabulary pass."""
    bandwidth(bench)
    shapes = [(1, 16, 2048, 3), (32, 16, 800, 0), (1, 16, 800, 0), (8, 8, 800, 0), (4, 16, 2048, 3),
              (1, 1, 2048, 0), (128, 8, 800, 0), (1, 16, 8192, 3), (32, 1, 800, 0)]  # fmt: skip
    if bench.tiny:
        shapes = [(1, 4, 32, 1)]
    for C, B, P, branches in shapes:
        kind = "fused" if branches else "verify"
        for config in launch.ATTENTION_CONFIGS if not bench.tiny else (launch.SMALL,):
            if bench.spent:
                return
            _attention(bench, uniform(kind, C, B, branches, P), config)
    for rows in (1, 16, 64, 256) if not bench.tiny else (2,):
        _readout(bench, rows)


def _attention(bench: Bench, point: Point, config: launch.AttentionConfig) -> None:
    g = geometry(bench, PAGE)
    n = len(point.requests)
    rows = host_rows(list(point.requests), page=PAGE, vocab=g.vocab, mask_id=g.mask_id)
    buffers = StepBuffers(len(rows.ids), n, page_count(rows), PAGE, bench.device)
    buffers.fill(rows)
    shape = (page_count(rows) * PAGE, g.kv_heads, g.head_dim)
    pools = [
        [torch.randn(shape, device=bench.device).to(bench.dtype) for _ in range(2)]
        for _ in range(LAYERS)
    ]
    qkv = torch.randn(len(rows.ids), (g.heads + 2 * g.kv_heads) * g.head_dim, device=bench.device)
    q, k, v = split_qkv(qkv.to(bench.dtype), g)
    out = torch.zeros(len(rows.ids), g.heads, g.head_dim, device=bench.device, dtype=bench.dtype)
    ops = TritonRoundOps(
        g, len(rows.ids), n, bench.device, bench.processors, exact=bench.tiny, config=config
    )
    ops.prepare(buffers.rows.q_ptr, buffers.prefix)

    def run() -> None:
        for k_pool, v_pool in pools:
            ops.attend_rows(q, k, v, buffers.rows.vis, buffers.table, k_pool, v_pool, out)

    ms, spread, _ = bench.time_ms(bench.captured(run))
    card = gpu("h200")
    size = 2 * point.kv_tokens * g.kv_heads * g.head_dim * 2
    prefix = point.requests[0].context
    work = 4 * point.query_tokens * g.heads * g.head_dim * prefix
    bench.note(
        "speed", what="attention", C=n, B=point.block_size, P=prefix,
        branches=point.branches // n, config=config.name, tokens=point.query_tokens,
        items=int(ops.work.n_items), us=ms / LAYERS * 1e3, std_us=spread / LAYERS * 1e3,
        bytes_floor_us=size / card.bandwidth * 1e6, flops_floor_us=work / card.flops * 1e6,
    )  # fmt: skip


def _readout(bench: Bench, rows: int) -> None:
    g = geometry(bench, PAGE)
    ops = bench.ops(g, rows, 1)
    into = ReadoutBuffers.sized(rows, bench.device)
    for dtype in (torch.float32, bench.dtype):
        logits = torch.randn(rows, g.vocab, device=bench.device).to(dtype)
        ms, _, _ = bench.time_ms(bench.captured(partial(ops.readout, logits, into)))
        plain, _, _ = bench.time_ms(partial(_softmax_topk, logits))
        size = logits.numel() * logits.element_size()
        bench.note(
            "speed", what="readout", rows=rows, dtype=str(dtype).removeprefix("torch."),
            us=ms * 1e3, torch_us=plain * 1e3, floor_us=size / gpu("h200").bandwidth * 1e6,
        )  # fmt: skip


def _softmax_topk(logits: torch.Tensor) -> None:
    """What a read-out costs in torch, entropy and alternatives not included."""
    logits.float().softmax(-1).topk(2)


def graphs(bench: Bench, transformer: Transformer) -> None:
    """One verify forward eager and replayed, on the device's clock and on the wall's."""
    config = transformer.config
    context = 24 if bench.tiny else 800
    point = uniform("verify", 1, 4 if bench.tiny else 16, 0, context)
    rows = host_rows(list(point.requests), page=PAGE, vocab=config.vocab, mask_id=config.mask_id)
    T = len(rows.ids)
    pages = page_count(rows)
    buffers = StepBuffers(T, 1, pages, PAGE, bench.device)
    pools = random_pools(config, pages * PAGE, bench.device, transformer.dtype)
    ops = bench.ops(geometry_of(transformer, PAGE), T, 1, rank_of(transformer))
    forward = DeviceForward(transformer, ops, T)
    head = OutputHead(transformer.weights.head, T)
    read = ReadoutBuffers.sized(T, bench.device)

    def run() -> None:
        forward.read(buffers.rows, buffers.table, buffers.prefix, pools, head, read)

    with torch.inference_mode():
        buffers.fill(rows)
        eager, _, _ = bench.time_ms(run)
        replay = bench.captured(run)
        device, _, count = bench.time_ms(replay)
        began = time.perf_counter()
        for _ in range(count):
            buffers.fill(rows)
            replay()
            read.ids.cpu()
        wall = (time.perf_counter() - began) / count * 1e3
    share = max(0.0, 1 - device / wall)
    bench.note("graphs", eager_ms=eager, replay_ms=device, step_wall_ms=wall, host_share=share)
