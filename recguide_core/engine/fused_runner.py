"""Runs packed steps through the kernels, in captured graphs where a step allows it.

The same steps and readings as `runner.TorchRunner`. Requests that sample, bias logits or want
logprobs run in the same graphs; only their rows are read out again (`wishes`). Steps that keep
hidden states go through the torch runner; every eager forward is counted with its reason. Works
with any `RoundOps`, so CPU tests drive all of it with the torch twins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.wishes import Wishes
from recguide_core.kernels import launch
from recguide_core.kernels.device_forward import DeviceForward, Pools
from recguide_core.kernels.graphs import GraphCache, GraphKey
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import RoundOps
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.step_buffers import HostRows, StepBuffers
from recguide_core.kvcache import KVPool
from recguide_core.model.config import ModelConfig
from recguide_core.model.transformer import Transformer
from recguide_core.records import Row, Rows

if TYPE_CHECKING:
    from recguide_core.engine.runner import TorchRunner

MakeOps = Callable[[int, int], RoundOps]
PROBE_TOKENS = 8


class Served(Protocol):
    """What the kernels need of a model; a `LoadedModel` has it."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def transformer(self) -> Transformer: ...


class _Bucket:
    """Fixed buffers of one graph key and the forward over them."""

    def __init__(
        self, model: Served, pool: KVPool, ops: RoundOps, key: GraphKey, adapter: bool
    ) -> None:
        transformer = model.transformer
        device = transformer.device
        self.buffers = StepBuffers(key.tokens, key.requests, pool.pages, pool.page_size, device)
        self.forward = DeviceForward(transformer, ops, key.tokens, adapter=adapter)
        # Ids and statistics lie in one buffer: one copy back to the host.
        self.packed = torch.zeros(key.tokens * 7, dtype=torch.int32, device=device)
        cut = key.tokens * 2
        self.read = ReadoutBuffers(
            self.packed[:cut].view(key.tokens, 2),
            self.packed[cut:].view(torch.float32).view(key.tokens, 5),
        )

    def readings(self, count: int) -> StepReadings:
        """The one wait of a step."""
        host = self.packed.cpu().numpy()
        tokens = len(host) // 7
        ids = host[: 2 * tokens].reshape(tokens, 2)[:count]
        stats = host[2 * tokens :].view(np.float32).reshape(tokens, 5)[:count]
        return StepReadings.of_device(ids, stats)


class FusedRunner:
    """An `Executor` over `RoundOps`.

    Args:
        fallback: runs the steps that the kernels do not serve.
        make_ops: kernels for at most (tokens, requests).
        graphs: decides between replay and eager.
        adapter: False ignores the draft adapter (the self-test compares the two).
    """

    def __init__(
        self,
        model: Served,
        pool: KVPool,
        fallback: TorchRunner,
        make_ops: MakeOps,
        graphs: GraphCache,
        *,
        adapter: bool = True,
    ) -> None:
        self.model = model
        self.pool = pool
        self.graphs = graphs
        self._fallback = fallback
        self._make_ops = make_ops
        self._adapter = adapter
        self._buckets: dict[GraphKey, _Bucket] = {}
        self._pools = Pools(pool.k, pool.v)
        rows, transformer = launch.TOKEN_BUCKETS[-1], model.transformer
        self._head = OutputHead(transformer.weights.head, rows)
        self._wishes = Wishes(fallback, self._head)
        # Whatever graph ran last left its final hidden states here.
        self._hidden = torch.zeros(
            (rows, model.config.hidden), dtype=transformer.dtype, device=transformer.device
        )

    @property
    def head(self) -> OutputHead:
        """Makes logits, in one buffer for everything that runs on the device."""
        return self._head

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        key = GraphKey.of(len(step.positions), len(step.slots))
        reason = _unserved(needs)
        if key is None or reason is not None:
            why = reason or "more tokens or requests than the largest bucket"
            results: list[StepReadings] = []
            self.graphs.run_eager(lambda: results.append(self._fallback.execute(step, needs)), why)
            return results[0]
        with torch.inference_mode():
            wished = self._wishes.rows(step, needs)
            readings = self._execute(key, step)
            if wished is not None:
                self.graphs.report.reread += 1
                self._wishes.read(step, wished, needs, self._hidden, readings)
            return readings

    def _execute(self, key: GraphKey, step: PackedStep) -> StepReadings:
        bucket = self._bucket(key)
        bucket.buffers.fill(self._host_rows(step))
        count = len(step.readout)
        if count == len(step.positions):
            self.graphs.run(key, lambda: self._forward(bucket))
            return bucket.readings(count)
        # A prompt chunk reads out one token of many: its head must not run over all of them.
        self.graphs.run_eager(lambda: self._forward_some(bucket, step.readout), "prompt chunk")
        return bucket.readings(count)

    def _forward(self, bucket: _Bucket) -> None:
        hidden = self._final(bucket)
        self._head.run(bucket.forward.ops, hidden, bucket.read)

    def _forward_some(self, bucket: _Bucket, readout: np.ndarray) -> None:
        hidden = self._final(bucket)
        chosen = hidden[torch.from_numpy(readout).to(hidden.device)]
        self._head.run(bucket.forward.ops, chosen, bucket.read.rows(0, len(readout)))

    def _final(self, bucket: _Bucket) -> torch.Tensor:
        buffers = bucket.buffers
        hidden = bucket.forward.hidden(buffers.rows, buffers.table, buffers.prefix, self._pools)
        self._hidden[: len(hidden)].copy_(hidden)
        return hidden

    def _bucket(self, key: GraphKey) -> _Bucket:
        if key not in self._buckets:
            ops = self._make_ops(key.tokens, key.requests)
            self._buckets[key] = _Bucket(self.model, self.pool, ops, key, self._adapter)
        return self._buckets[key]

    def _host_rows(self, step: PackedStep) -> HostRows:
        lengths = step.rows.length
        return HostRows(
            ids=step.rows.tokens,
            pos=step.positions,
            vis=step.vis,
            adapter=np.repeat(step.rows.adapter, lengths),
            commit=np.repeat(step.rows.commit, lengths),
            offset=step.offset,
            prefix=step.prefix,
            pages=[self.pool.page_list(slot) for slot in step.slots.tolist()],
        )

    def self_test(self) -> list[str]:
        """Faults found by probing a draft row under replay; empty when all is well.

        Draft rows commit nothing and the probe has no prefix, so the pool is not touched. Checks
        that a replay equals the eager forward, that a replay follows its inputs, and that the
        draft adapter changes the result (a graph captured without it would draft badly for ever).
        """
        first, second = self._probe(5), self._probe(6)
        faults = []
        replayed = self._hidden_of(first, replay=True)
        if not torch.equal(replayed, self._hidden_of(first, replay=False)):
            faults.append("a replayed forward differs from the eager one")
        if torch.equal(replayed, self._hidden_of(second, replay=True)):
            faults.append("a replay ignores its inputs")
        if self.model.transformer.adapter is not None:
            off = self._probe(5, adapter=False)
            if torch.equal(replayed, self._hidden_of(off, replay=True)):
                faults.append("the draft adapter does not change a replayed draft")
        return faults

    def _probe(self, token: int, adapter: bool = True) -> HostRows:
        mask = self.model.config.mask_id
        rows = Rows.of([Row(0, [token, *[mask] * (PROBE_TOKENS - 1)], 0, bidirectional=True)])
        index = np.arange(PROBE_TOKENS)
        zeros = np.zeros_like(index)
        return HostRows(
            ids=rows.tokens,
            pos=index,
            vis=np.stack([zeros, zeros + PROBE_TOKENS, zeros, zeros], 1),
            adapter=zeros + adapter,
            commit=zeros,
            offset=np.array([0, PROBE_TOKENS]),
            prefix=np.zeros(1, np.int64),
            pages=[[0]],
        )

    def _hidden_of(self, probe: HostRows, *, replay: bool) -> torch.Tensor:
        """Statistics of the probe's tokens; they move with every change of the hidden state."""
        key = GraphKey(PROBE_TOKENS, 1)
        with torch.inference_mode():
            bucket = self._bucket(key)
            bucket.buffers.fill(probe)
            bucket.read.stats.fill_(-1.0)
            if replay:
                # The first run of a key is the eager one that precedes its capture.
                self.graphs.run(key, lambda: self._forward(bucket))
                bucket.read.stats.fill_(-1.0)
                self.graphs.run(key, lambda: self._forward(bucket))
            else:
                self._forward(bucket)
            return bucket.read.stats.clone()


def _unserved(needs: ReadoutNeeds) -> str | None:
    """Why a step needs more than the kernels give; None when it does not."""
    return "hidden states" if needs.hidden else None
