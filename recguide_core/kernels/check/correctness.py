"""Each kernel against its twin on the device, at full geometry where there is one."""

from __future__ import annotations

import torch

from recguide_core.kernels import attention_reference, launch
from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.models import RANK, TINY_RANK
from recguide_core.kernels.check.shapes import RequestShape, fused, host_rows, page_count
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import Geometry, Rotation, TorchRoundOps, split_qkv
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.sampled_rows import RowNoise
from recguide_core.kernels.sampling_torch import noise_table
from recguide_core.kernels.step_buffers import StepBuffers

ATTENTION_LIMIT = 6e-3
"""Relative error of bf16 attention against float64 (rounding of P and of the output)."""


def geometry(bench: Bench, page: int) -> Geometry:
    if bench.tiny:
        return Geometry(4, 2, 64, 2000, page, 100, (11,))
    return Geometry(32, 8, 128, 131072, page, 100, (11,))


def _noise(bench: Bench, *shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator(device=bench.device).manual_seed(seed)
    return torch.randn(*shape, device=bench.device, generator=g).to(bench.dtype)


def attention(bench: Bench) -> None:
    """Ragged mixes of verify, draft and branch rows; pages 1 and 16; every shipped tile."""
    scale = 16 if bench.tiny else 1
    cases = [
        (1, [fused(0, 8, 3)]),
        (16, [fused(1500 // scale, 32, 3), RequestShape(100, 1)]),
        (16, [RequestShape(65, 8), RequestShape(333 // scale, 8, draft=True)]),
        (1, [RequestShape(777 // scale, 1), RequestShape(2000 // scale, 1)]),
        (16, [fused(400 // scale, 16, 2), RequestShape(3000 // scale, 16, draft=True)]),
    ]
    for page, requests in cases[: 3 if bench.tiny else None]:
        for config in launch.ATTENTION_CONFIGS[:2] if bench.tiny else launch.ATTENTION_CONFIGS:
            _attention_case(bench, page, requests, config)


def _attention_case(
    bench: Bench, page: int, requests: list[RequestShape], config: launch.AttentionConfig
) -> None:
    from recguide_core.kernels.ops_triton import TritonRoundOps

    g = geometry(bench, page)
    rows = host_rows(requests, page=page, vocab=g.vocab, mask_id=g.mask_id)
    T, R, pages = len(rows.ids), len(requests), page_count(rows)
    buffers = StepBuffers(T, R, pages, page, bench.device)
    buffers.fill(rows)
    shape = (pages * page, g.kv_heads, g.head_dim)
    k_pool, v_pool = _noise(bench, *shape, seed=1), _noise(bench, *shape, seed=2)
    qkv = _noise(bench, T, (g.heads + 2 * g.kv_heads) * g.head_dim, seed=3)
    q, k, v = split_qkv(qkv, g)
    out = torch.full((T, g.heads, g.head_dim), float("nan"), device=bench.device).to(bench.dtype)
    ops = TritonRoundOps(g, T, R, bench.device, bench.processors, exact=bench.tiny, config=config)
    ops.prepare(buffers.rows.q_ptr, buffers.prefix)
    ops.attend_rows(q, k, v, buffers.rows.vis, buffers.table, k_pool, v_pool, out)
    want = attention_reference.attend(
        q, k, v, k_pool, v_pool, buffers.table.pages, buffers.table.page_ptr,
        rows.offset.tolist(), [r.context for r in requests], buffers.rows.vis, page,
    )  # fmt: skip
    error = float((out.double() - want).norm() / want.norm())
    bench.note(
        "attention", config=config.name, page=page, tokens=T, requests=R, error=error,
        items=int(ops.work.n_items), ok=error < ATTENTION_LIMIT,
    )  # fmt: skip


def readout(bench: Bench) -> None:
    """Ids exactly, statistics to 1e-4, at the full vocabulary; and the chunked head."""
    g = geometry(bench, 16)
    twin = TorchRoundOps(g)
    for rows in (1, 68, 512) if not bench.tiny else (3,):
        for dtype in (torch.float32, bench.dtype):
            logits = (_noise(bench, rows, g.vocab).float() * 3).to(dtype)
            logits[0, 7] = logits[0, 9] = logits[0].max()
            _compare_readout(bench, g, twin, logits, str(dtype).removeprefix("torch."))
    _compare_sampling(bench, g, 3 if bench.tiny else 32)
    hidden, width = 70 if bench.tiny else 600, 64 if bench.tiny else 4096
    weight = _noise(bench, g.vocab, width, seed=5) / width**0.5
    x = _noise(bench, hidden, width, seed=6)
    got, want = (ReadoutBuffers.sized(hidden, bench.device) for _ in range(2))
    head = OutputHead(weight, hidden)
    head.run(bench.ops(g, hidden, 1), x, got)
    head.run(twin, x, want)
    same = float((got.token == want.token).float().mean())
    bench.note("readout", what="chunked head", rows=hidden, chunk=head.rows, same_token=same,
               extra_mib=head.extra_bytes >> 20, ok=same == 1.0)  # fmt: skip


def _compare_readout(
    bench: Bench, g: Geometry, twin: TorchRoundOps, logits: torch.Tensor, dtype: str
) -> None:
    n = len(logits)
    got, want = (ReadoutBuffers.sized(n, bench.device) for _ in range(2))
    bench.ops(g, n, 1).readout(logits, got)
    twin.readout(logits, want)
    error = float((got.stats - want.stats).abs().max())
    ids = torch.equal(got.ids, want.ids)
    bench.note("readout", rows=n, dtype=dtype, ids=ids, error=error, ok=ids and error < 1e-4)


def _compare_sampling(bench: Bench, g: Geometry, n: int) -> None:
    """Tokens against the twin on the CPU, whose noise is the one that the table holds."""
    logits = _noise(bench, n, g.vocab).float() * 3
    heat = torch.linspace(0.0, 1.5, n)
    key = torch.arange(n, dtype=torch.int32) * 0x1234567
    got, want = ReadoutBuffers.sized(n, bench.device), ReadoutBuffers.sized(n)
    table = noise_table()
    hot, keyed, looked_up = (x.to(bench.device) for x in (heat, key, table))
    bench.ops(g, n, 1).readout(logits, got, RowNoise(hot, keyed, looked_up))
    TorchRoundOps(g).readout(logits.cpu(), want, RowNoise(heat, key, table))
    ids = torch.equal(got.ids.cpu(), want.ids)
    error = float((got.stats.cpu() - want.stats).abs().max())
    bench.note("readout", what="sampling", rows=n, ids=ids, error=error, ok=ids and error < 1e-4)


def fused_ops(bench: Bench) -> None:
    """RoPE with the K/V write, and the masked adapter."""
    for page in launch.PAGE_SIZES:
        _rope(bench, page)
    _adapter(bench)


def _rope(bench: Bench, page: int) -> None:
    g = geometry(bench, page)
    requests = [fused(37, 16, 3), RequestShape(20, 8, draft=True), RequestShape(3, 1)]
    rows = host_rows(requests, page=page, vocab=g.vocab, mask_id=g.mask_id)
    T = len(rows.ids)
    buffers = StepBuffers(T, len(requests), page_count(rows), page, bench.device)
    buffers.fill(rows)
    angle = _noise(bench, T, g.head_dim // 2, seed=1).float() * 3
    heat = 1 + _noise(bench, T, seed=2).float().abs() / 10
    rotation = Rotation(angle.cos(), angle.sin(), heat)
    results = []
    for ops in (TorchRoundOps(g), bench.ops(g, T, len(requests))):
        qkv = _noise(bench, T, (g.heads + 2 * g.kv_heads) * g.head_dim, seed=4)
        shape = (page_count(rows) * page, g.kv_heads, g.head_dim)
        k, v = (torch.zeros(shape, dtype=bench.dtype, device=bench.device) for _ in range(2))
        ops.rotate_and_store(qkv, rotation, buffers.rows, buffers.table, k, v)
        results.append((qkv, k, v))
    pairs = zip(*results, strict=True)
    error = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
    bench.note("fused", what="rope and K/V write", page=page, error=error, ok=error < 5e-2)


def _adapter(bench: Bench) -> None:
    g = geometry(bench, 16)
    rank, T = (TINY_RANK, 20) if bench.tiny else (RANK, 200)
    width = g.heads * g.head_dim
    hidden = 128 if bench.tiny else 4096
    x = _noise(bench, T, width, seed=1)
    down, up = _noise(bench, rank, width, seed=2) / 30, _noise(bench, hidden, rank, seed=3)
    flags = torch.zeros(T, dtype=torch.int32, device=bench.device)
    flags[3 : T // 2] = 1
    outs = []
    for ops in (TorchRoundOps(g), bench.ops(g, T, 1, rank)):
        out = _noise(bench, T, hidden, seed=4)
        ops.add_adapter(out, x, down, up, flags)
        outs.append(out.float())
    error = float((outs[0] - outs[1]).abs().max() / outs[0].abs().max())
    untouched = torch.equal(outs[1][T // 2 :], _noise(bench, T, hidden, seed=4).float()[T // 2 :])
    bench.note("fused", what="masked adapter", error=error, ok=error < 2e-2 and untouched)
