"""The worker that SGLang's scheduler calls: batches in, accepted tokens out.

Between SGLang's batches and the driver's parts and turns; what a round is, is the driver's
business. The state that SGLang carries from step to step is empty, because the driver keeps it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from recguide_core.engine.settings import EngineSettings
from recguide_core.model.config import ModelConfig
from recguide_core.model.weights import read_adapter
from recguide_core.sglang_plugin import adapter as sgl
from recguide_core.sglang_plugin.admission import sampling_of, wish_of
from recguide_core.sglang_plugin.algorithm import ROUNDS
from recguide_core.sglang_plugin.build import choose_planners
from recguide_core.sglang_plugin.driver import StepDriver
from recguide_core.sglang_plugin.executors import FlatExecutor
from recguide_core.sglang_plugin.graphs import graphs_on_cuda
from recguide_core.sglang_plugin.machine import ServedMachine
from recguide_core.sglang_plugin.metrics import Exporter
from recguide_core.sglang_plugin.plugin import current_settings
from recguide_core.sglang_plugin.probe import Station, about_server, run_probe
from recguide_core.sglang_plugin.row_cache import RowCache
from recguide_core.sglang_plugin.step_records import STRIDE, PromptPart, Turn
from recguide_core.sglang_plugin.stock import UniformExecutor
from recguide_core.sglang_plugin.stock_bridge import StockBridge
from recguide_core.sglang_plugin.trace import trace_writer

NOT_FINITE = "the model's logits are not finite"


def attention_note(executor: Any) -> str:
    """Which attention runs the rows, for the log."""
    if isinstance(executor, UniformExecutor):
        return "attention: SGLang's own, with a mask."
    why = executor.why_twin
    return "attention: packed kernel." if why is None else f"attention: torch ({why})."


class CarriedState(sgl.SpecInput):  # type: ignore[misc,unused-ignore]
    """What SGLang passes from step to step: nothing but its own book-keeping."""

    def __init__(self) -> None:
        super().__init__(sgl.STATE_KIND)
        self.num_tokens_per_req = self.num_tokens_for_logprob_per_req = 1
        self.future_indices = None

    def filter_batch(self, new_indices: Any, new_indices_cpu: Any = None) -> None:
        """Requests left the batch; the driver drops them by key."""

    def merge_batch(self, other: Any) -> None:
        """Requests joined the batch; the driver knows them since their prefill."""


class RecGuideWorker(sgl.BaseSpecWorker):  # type: ignore[misc,unused-ignore]
    """Speculative worker `RECGUIDE` (V2 schema, synchronous)."""

    def __init__(
        self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any, **_: Any
    ) -> None:
        super().__init__()
        del gpu_id, nccl_port
        self.server_args = server_args
        self._target_worker, self._draft_worker = target_worker, None
        self.model_runner = target_worker.model_runner
        self.device = target_worker.device
        self.plugin_settings = current_settings()
        self.speculative_num_steps = 1
        self.speculative_num_draft_tokens = server_args.speculative_num_draft_tokens
        self.topk = 1
        self.bridge: StockBridge | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_target_worker":
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    # -- start-up, in the order in which SGLang calls it ------------------------------------

    def init_attention_backends(self) -> None:
        """The KV pool exists now: build cache, executor and driver."""
        runner, settings = self.model_runner, self.plugin_settings
        module, requests = runner.model, sgl.most_requests(runner)
        config: ModelConfig = module.geometry
        folder, context = Path(self.server_args.model_path), sgl.context_limit(runner)
        module.prepare(
            context, read_adapter(folder, config, module.weight_device, module.weight_dtype)
        )
        k, v = sgl.kv_buffers(runner, config.layers)
        slots = 2 * requests + 16
        cache = RowCache(sgl.row_table(runner), k, v, np.zeros(slots, np.int64))
        executor = self._executor(module, cache)
        if settings.probe is not None:
            self._probe(Path(settings.probe), executor, cache, config)
        chosen = choose_planners(settings, folder, str(self.device), requests)
        self.driver = StepDriver(
            executor,
            list(chosen.planners.values()),
            slots=slots,
            context=context,
            mask_id=config.mask_id,
            settings=EngineSettings(
                max_requests=slots,
                batching=settings.batching,
                entropy_positions=chosen.positions,
            ),
            place=cache.bind,
            load=settings.load,
        )
        self._planner_index = {name: i for i, name in enumerate(chosen.planners)}
        if settings.layout != "flat":
            # Prompts go through SGLang's own forward, which has no rows beside them.
            self.driver.first_drafts = [0] * len(chosen.planners)
        self.exporter = Exporter(
            self.driver,
            next(iter(chosen.planners)),
            settings.layout,
            # Ranks do the same steps; one of them counts.
            enabled=self.server_args.enable_metrics and sgl.tensor_parallel()[1] == 0,
        )
        self.exporter.announce([*chosen.notes, attention_note(self.driver.executor)])
        if settings.trace is not None and sgl.tensor_parallel()[1] == 0:
            self.driver.observers.append(trace_writer(Path(settings.trace)))

    def _probe(self, job: Path, executor: Any, cache: RowCache, config: ModelConfig) -> None:
        """Measure the model while its pool is empty; see `probe`."""
        machine = ServedMachine(executor, cache, config, sgl.context_limit(self.model_runner))
        parts, rank = sgl.tensor_parallel()

        def agree(answer: bool) -> bool:
            return bool(sgl.from_rank_zero(torch.tensor(answer, device=cache.device)).item())

        about = about_server(self.device, executor, parts)
        run_probe(job, Station(machine, leader=rank == 0, agree=agree), about)
        machine.close()

    def _executor(self, module: Any, cache: RowCache) -> Any:
        """The executor of the layout; graphs only where there is a CUDA device."""
        parts, _ = sgl.tensor_parallel()
        if self.plugin_settings.layout != "flat":
            self.bridge = StockBridge(self.model_runner, self._target_worker)
            return UniformExecutor(module, cache, sgl.from_rank_zero, self.bridge)
        if cache.device.type != "cuda" or not self.plugin_settings.graphs:
            return FlatExecutor(module, cache, sgl.from_rank_zero, parts)
        return graphs_on_cuda(module, cache, sgl.from_rank_zero, parts, sgl.graph_capture)

    def init_cuda_graphs(self) -> None:
        """Nothing to capture ahead: a bucket's graph is captured on its first use."""

    # -- steps ------------------------------------------------------------------------------

    @torch.no_grad()
    def forward_batch_generation(self, batch: Any, on_publish: Any = None, **_: Any) -> Any:
        """One step for the scheduler; a prefill or a round."""
        del on_publish
        if self.bridge is not None:
            self.bridge.batch = batch
        result = self._decode(batch) if batch.forward_mode.is_decode() else self._prefill(batch)
        self.exporter.update()
        return result

    def _prefill(self, batch: Any) -> Any:
        ids = batch.input_ids.cpu().numpy().astype(np.int64)
        rows = batch.req_pool_indices.tolist()
        ends = np.cumsum(batch.extend_lens)
        parts = []
        for i, request in enumerate(batch.reqs):
            method, block = wish_of(request.sampling_params)
            parts.append(
                PromptPart(
                    key=request.rid,
                    row=rows[i],
                    first=int(batch.prefix_lens[i]),
                    tokens=ids[ends[i] - batch.extend_lens[i] : ends[i]],
                    last=sgl.is_last_piece(request),
                    remaining=sgl.tokens_left(request),
                    sampling=sampling_of(request.sampling_params),
                    planner=self._planner_index.get(method, 0),
                    block=block,
                )
            )
        tokens, faulty = self.driver.prefill(parts)
        self._fail(batch, faulty)
        return sgl.GenerationBatchResult(
            logits_output=sgl.LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=torch.from_numpy(tokens),
            new_seq_lens=batch.seq_lens,
            next_draft_input=CarriedState(),
            can_run_cuda_graph=False,
        )

    def _decode(self, batch: Any) -> Any:
        committed = sgl.committed_lengths(batch)
        rows = batch.req_pool_indices.tolist()
        turns = [
            Turn(request.rid, rows[i], committed[i], sgl.tokens_left(request))
            for i, request in enumerate(batch.reqs)
        ]
        step = self.driver.decode(turns)
        self._fail(batch, step.faulty)
        counts = torch.from_numpy(step.counts)
        result = sgl.GenerationBatchResult(
            logits_output=sgl.LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=torch.from_numpy(step.tokens).reshape(-1),
            accept_lens=counts.to(torch.int32),
            new_seq_lens=batch.seq_lens + counts.to(batch.seq_lens),
            next_draft_input=CarriedState(),
            speculative_num_draft_tokens=self.speculative_num_draft_tokens,
            speculative_output_stride=STRIDE,
            num_non_draft_tokens_per_req=0,
            can_run_cuda_graph=self.exporter.last_was_graph(),
        )
        setattr(result, ROUNDS, step.rounds)
        return result

    def _fail(self, batch: Any, keys: list[str]) -> None:
        for request in batch.reqs:
            if request.rid in keys:
                sgl.fail_request(request, NOT_FINITE)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """SGLang settled a request's end."""
        del natural_stop
        self.driver.forget(rid)
