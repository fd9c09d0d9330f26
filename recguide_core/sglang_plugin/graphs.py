"""Steps in captured CUDA graphs, one per (token bucket, request bucket); eager where that fails.

All index arrays of a step lie in fixed buffers of the bucket's size. Padding tokens belong to no
request: they see nothing and write to slot 0, which SGLang keeps for padding. Tokens that do not
commit write there too, so the number of writes is fixed. The draft adapter works under a token
mask, so one graph serves draft and verify rows alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.kernels.graphs import Capture, GraphCache, GraphKey, Run
from recguide_core.kernels.lora_torch import add_masked
from recguide_core.kernels.ops import PageTable
from recguide_core.kernels.readout_torch import read_out
from recguide_core.model.transformer import TokenBatch
from recguide_core.sglang_plugin.executors import FlatExecutor, MakeKernels
from recguide_core.sglang_plugin.row_cache import RowCache, writes_of

MOST_TOKENS = 512
"""Largest graph: its logits are alive all at once (256 MiB in fp32 for 131072 ids)."""
PADDING_SLOT = 0


class AdapterMask:
    """Which packed tokens take the draft adapter, as a mask of fixed size.

    Attributes:
        tokens: int32 [T], 1 = takes it.
        add: (out, x, down, up, mask) -> None, the masked delta in place.
    """

    def __init__(self, tokens: torch.Tensor, add: Callable[..., None] = add_masked) -> None:
        self.tokens = tokens
        self.add = add


class RowBuffers:
    """Inputs of one graph: at most `tokens` packed tokens of `requests` requests."""

    def __init__(self, key: GraphKey, cache: RowCache) -> None:
        device = cache.device

        def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.key = key
        self.cache = cache
        self.ids = ints(key.tokens, dtype=torch.int64)
        self.positions = ints(key.tokens, dtype=torch.int64)
        self.vis = ints(key.tokens, 4)
        self.adapter = ints(key.tokens)
        self.write_at = ints(key.tokens, dtype=torch.int64)
        self.commit = ints(key.tokens, dtype=torch.int64)
        self.q_ptr = ints(key.requests + 1)
        self.prefix = ints(key.requests)
        self.row_ptr = ints(key.requests + 1)
        self.table = PageTable(cache.table.view(-1), self.row_ptr, 1)

    def fill(self, step: PackedStep) -> None:
        """Copy a step in; the rest becomes padding."""
        total, requests = len(step.positions), len(step.slots)
        writes = writes_of(self.cache, step)
        at, commit = np.zeros(total, np.int64), np.zeros(total, np.int64)
        at[writes.token], commit[writes.token] = writes.at, 1
        rows = self.cache.row_offsets(step)
        for buffer, values in (
            (self.ids, step.rows.tokens),
            (self.positions, step.positions),
            (self.vis, step.vis),
            (self.adapter, step.adapter_tokens),
            (self.write_at, at),
            (self.commit, commit),
            (self.prefix, step.prefix),
            (self.row_ptr, rows),
        ):
            _place(buffer, values, 0)
        # Requests of the padding have no tokens: their queries start where the last one ended.
        _place(self.q_ptr, step.offset[: requests + 1], total)

    def slots(self) -> torch.Tensor:
        """KV slot that each token writes, int64 [T]; `PADDING_SLOT` where it commits nothing."""
        slot = self.table.pages[self.write_at].to(torch.int64)
        return slot * self.commit + PADDING_SLOT * (1 - self.commit)


def _place(buffer: torch.Tensor, values: np.ndarray, blank: int) -> None:
    host = np.full(tuple(buffer.shape), blank, np.int64)
    host[: len(values)] = values
    buffer.copy_(torch.from_numpy(host).to(buffer.dtype))


class BufferAttention:
    """The packed kernel over a graph's buffers; writes every token, padding into slot 0."""

    def __init__(self, buffers: RowBuffers, ops: Any, slots: torch.Tensor) -> None:
        self.buffers = buffers
        self.ops = ops
        self.slots = slots

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache = self.buffers.cache
        keys, values = cache.k[layer], cache.v[layer]
        # Padding tokens are not written by the kernel and must not feed NaN into the MLP.
        out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        self.ops.attend_rows(q, k, v, self.buffers.vis, self.buffers.table, keys, values, out)
        keys.index_copy_(0, self.slots, k)
        values.index_copy_(0, self.slots, v)
        return out.view(len(q), -1)


class GraphExecutor(FlatExecutor):
    """`FlatExecutor` that replays graphs for greedy steps that fit one.

    Args:
        graphs: decides between replay and eager, and counts the reasons.
        make_ops: kernels for at most (tokens, requests); None makes Triton's.
    """

    def __init__(
        self, *args: Any, graphs: GraphCache, make_ops: MakeKernels | None = None, **kw: Any
    ) -> None:
        super().__init__(*args, **kw)
        self.graphs = graphs
        self.replayed = False
        self._no_kernel: str | None = None
        self._make_ops = make_ops
        self._buckets: dict[GraphKey, tuple[RowBuffers, Any, torch.Tensor]] = {}

    def forbid(self, reason: str | None) -> None:
        """Run everything eagerly for a reason; None allows graphs."""
        self._no_kernel = reason

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        key = GraphKey.of(len(step.positions), len(step.slots))
        reason = _unserved(step, needs, key)
        reason = reason or self._no_kernel
        if reason is None and key is not None:
            before = self.graphs.report.replays
            with torch.inference_mode():
                found = self._run_bucket(key, step)
            self.replayed = self.graphs.report.replays > before
            return found
        self.replayed = False
        results: list[StepReadings] = []
        eager = super().execute
        self.graphs.run_eager(lambda: results.append(eager(step, needs)), reason or "no bucket")
        return results[0]

    def _bucket(self, key: GraphKey) -> tuple[RowBuffers, Any, torch.Tensor]:
        if key not in self._buckets:
            ops = (self._make_ops or self.maker())(key.tokens, key.requests)
            stats = torch.zeros((5, key.tokens), dtype=torch.float64, device=self.device)
            self._buckets[key] = (RowBuffers(key, self.cache), ops, stats)
        return self._buckets[key]

    def _run_bucket(self, key: GraphKey, step: PackedStep) -> StepReadings:
        buffers, ops, stats = self._bucket(key)
        buffers.fill(step)
        self.graphs.run(key, lambda: self._forward(buffers, ops, stats))
        host = self._agree(stats).cpu().numpy()[:, step.readout]
        return StepReadings(
            token=host[0].astype(np.int64),
            alt=host[1].astype(np.int64),
            confidence=host[2].astype(np.float32),
            margin=host[3].astype(np.float32),
            entropy=host[4].astype(np.float32),
        )

    def _forward(self, buffers: RowBuffers, ops: Any, stats: torch.Tensor) -> None:
        config = self.model.config
        adapter: Any = None
        if self.model.transformer.adapter is not None:
            # Without scratch for the rank there is no kernel for it.
            kernel = getattr(ops, "scratch", None) is not None and ops.scratch.low.numel()
            adapter = AdapterMask(buffers.adapter, ops.add_adapter if kernel else add_masked)
        ops.prepare(buffers.q_ptr, buffers.prefix)
        attention: Any = BufferAttention(buffers, ops, buffers.slots())
        batch = TokenBatch(buffers.ids, buffers.positions, adapter, None)
        transformer = self.model.transformer
        logits = transformer.head(transformer.forward(batch, attention))
        stats.copy_(read_out(logits, config.mask_id, config.eos_ids).packed())


def _unserved(step: PackedStep, needs: ReadoutNeeds, key: GraphKey | None) -> str | None:
    """Why a step runs eagerly, None when a graph may take it."""
    if needs.sampling:
        return "sampling or logit bias"
    if key is None or key.tokens > MOST_TOKENS:
        return "more tokens or requests than the largest graph"
    if len(step.readout) != len(step.positions):
        return "prompt chunk"
    return None


class ScopedCapture:
    """A capture inside whatever the ranks' collectives need around one."""

    def __init__(self, inner: Capture, scope: Callable[[], Any]) -> None:
        self._inner = inner
        self._scope = scope

    def warm(self, forward: Run) -> None:
        self._inner.warm(forward)

    def capture(self, forward: Run) -> Run:
        with self._scope():
            return self._inner.capture(forward)


GRAPH_BYTES = 4 << 30
"""Memory of all graphs together."""


def graphs_on_cuda(
    module: Any, cache: RowCache, agree: Any, parts: int, scope: Callable[[], Any]
) -> GraphExecutor:
    """The executor of a CUDA server.

    Args:
        scope: what has to surround a capture so that the ranks' collectives can be part of it.
    """
    from recguide_core.kernels.cuda import CudaCapture, memory_in_use

    plain = CudaCapture()
    capture = plain if parts == 1 else ScopedCapture(plain, scope)
    graphs = GraphCache(capture, GRAPH_BYTES, memory_in_use)
    executor = GraphExecutor(module, cache, agree, parts, graphs=graphs)
    executor.forbid(executor.why_twin)
    return executor
