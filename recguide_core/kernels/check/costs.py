"""The cost table: times of whole captured forwards, head and read-out included, by shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.models import random_pools
from recguide_core.kernels.check.roundtrip import rank_of
from recguide_core.kernels.check.shapes import RequestShape, fused, host_rows, page_count
from recguide_core.kernels.device_forward import DeviceForward, Pools, geometry_of
from recguide_core.kernels.graphs import GraphKey
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.roofline import Shape, forward_floor, gpu
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.step_buffers import StepBuffers
from recguide_core.model.transformer import Transformer

PAGE = 16
CONTEXT = 800
CONCURRENCY = (1, 8, 32, 2, 4, 16, 64, 128)
BLOCKS = (16, 8, 32, 4)
FLOOR_GPU = "h200"


@dataclass(frozen=True, slots=True)
class Point:
    """A forward to time, in the columns of the cost table."""

    kind: str
    requests: tuple[RequestShape, ...]
    block_size: int
    branches: int

    @property
    def query_tokens(self) -> int:
        return sum(r.query_tokens for r in self.requests)

    @property
    def kv_tokens(self) -> int:
        return sum(r.context for r in self.requests)


def uniform(kind: str, C: int, B: int, branches: int, context: int) -> Point:
    """C equal requests."""
    if kind == "fused":
        one = fused(context, B, branches)
    else:
        one = RequestShape(context, B, draft=kind == "draft")
    return Point(kind, (one,) * C, B, branches * C)


def ragged(C: int, context: int) -> Point:
    """Different blocks and phases in one forward, contexts from half to one and a half."""
    mix = (RequestShape(context // 2, 16), RequestShape(context * 3 // 2, 8, draft=True),
           fused(context, 16, 1), RequestShape(context, 1))  # fmt: skip
    requests = tuple(mix[i % len(mix)] for i in range(C))
    return Point("mixed", requests, 16, sum(len(r.branches) for r in requests))


def points(context: int, largest: int) -> Iterator[Point]:
    """Every shape, most important first: concurrency by concurrency, the default block ahead."""
    concurrency = [C for C in CONCURRENCY if largest >= C]
    for C in concurrency:
        yield uniform("ar", C, 1, 0, context)
        for B in BLOCKS:
            yield uniform("verify", C, B, 0, context)
            yield uniform("draft", C, B, 0, context)
        for branches in (3, 2, 1) if C <= 8 else ():
            yield uniform("fused", C, 16, branches, context)
        if C > 1:
            yield ragged(C, context)
    for C in (c for c in concurrency if c <= 4):
        for B in (8, 32):
            for branches in (1, 2, 3):
                yield uniform("fused", C, B, branches, context)
    for other in (context // 4, context * 4):
        for C in (c for c in concurrency if c <= 8):
            for kind, branches in (("verify", 0), ("fused", 3)):
                yield uniform(kind, C, 16, branches, other)


def cost(bench: Bench, transformer: Transformer) -> None:
    """Time points until the budget of the part is spent."""
    context, largest = (40, 2) if bench.tiny else (CONTEXT, 128)
    wanted = list(points(context, largest))
    most = max(sum(-(-(r.context + r.tokens) // PAGE) for r in p.requests) for p in wanted)
    pools = random_pools(transformer.config, (most + 1) * PAGE, bench.device, transformer.dtype)
    head = OutputHead(transformer.weights.head, 64 if bench.tiny else 4096)
    timed = 0
    for point in wanted[: 4 if bench.tiny else None]:
        if bench.spent:
            break
        timed += _time(bench, transformer, pools, head, point)
    bench.note("cost", what="points", timed=timed, wanted=len(wanted))


def _time(
    bench: Bench, transformer: Transformer, pools: Pools, head: OutputHead, point: Point
) -> int:
    config = transformer.config
    key = GraphKey.of(point.query_tokens, len(point.requests))
    if key is None:
        return 0
    rows = host_rows(list(point.requests), page=PAGE, vocab=config.vocab, mask_id=config.mask_id)
    buffers = StepBuffers(key.tokens, key.requests, page_count(rows), PAGE, bench.device)
    buffers.fill(rows)
    geometry = geometry_of(transformer, PAGE)
    ops = bench.ops(geometry, key.tokens, key.requests, rank_of(transformer))
    forward = DeviceForward(transformer, ops, key.tokens)
    read = ReadoutBuffers.sized(key.tokens, bench.device)

    def run() -> None:
        forward.read(buffers.rows, buffers.table, buffers.prefix, pools, head, read)

    with torch.inference_mode():
        mean, spread, count = bench.time_ms(bench.captured(run), repeats=15)
    row = {
        "kind": point.kind, "requests": len(point.requests), "query_tokens": point.query_tokens,
        "kv_tokens": point.kv_tokens, "block_size": point.block_size, "branches": point.branches,
        "mean_ms": mean, "std_ms": spread, "count": count, "origin": "measured",
    }  # fmt: skip
    bench.cost.append(row)
    finite = bool(read.stats.isfinite().all())
    bench.note("cost", **row, floor_ms=_floor_ms(transformer, point), ok=finite)
    return 1


def _floor_ms(transformer: Transformer, point: Point) -> float:
    """Floor of a uniform forward of the same size on the card of the goals."""
    C = len(point.requests)
    shape = Shape(
        C, max(1, point.query_tokens // C), point.kv_tokens // C, draft=point.kind == "draft"
    )
    return round(forward_floor(transformer.config, shape, gpu(FLOOR_GPU))[-1].ms, 4)
