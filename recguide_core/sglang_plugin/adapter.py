"""Every name of SGLang that the plugin touches, and nothing else of RecGuide.

Most of these names are private to SGLang and move between releases. Whoever adapts the plugin to
a new release reads this file, `versions.KNOWN_GOOD` and `tests/sglang/test_contract.py`; no other
module of RecGuide imports SGLang. The module itself is imported lazily, inside the room only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.configs.model_config import ModelConfig as SglangModelConfig
from sglang.srt.distributed import (
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)
from sglang.srt.distributed.parallel_state import graph_capture
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocation_sizing import (
    get_alloc_page_size,
    get_alloc_reserve_per_decode,
)
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType, SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

ROW_WIDTH = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"
ADMISSION = "sglang.srt.dllm.mixin.scheduler.SchedulerDllmMixin.validate_dllm_request"
RESOLVE = (
    "sglang.srt.managers.scheduler_components.batch_result_processor."
    "SchedulerBatchResultProcessor._resolve_spec_v2_tokens"
)
REPORT = (
    "sglang.srt.managers.scheduler_components.metrics_reporter."
    "SchedulerMetricsReporter.update_spec_metrics"
)

STATE_KIND = SpecInputType.UNO_STATE
VERIFY_KIND = SpecInputType.UNO_VERIFY
"""The enumeration is closed; UNO's values have no handling of their own outside UNO."""


def tensor_parallel() -> tuple[int, int]:
    """(size, rank) of the tensor-parallel group."""
    parallel = get_parallel()
    return int(parallel.tp_size), int(parallel.tp_rank)


def from_rank_zero(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor of tensor-parallel rank 0, on every rank; [..] of the same shape everywhere."""
    if tensor_parallel()[0] == 1:
        return tensor
    return get_parallel().tp_group.broadcast(tensor, src=0)  # type: ignore[no-any-return]


def add_hook(target: str, hook: Callable[..., Any], kind: Any) -> None:
    """Register a hook on a dotted name."""
    HookRegistry.register(target, hook, kind)


def row_table(runner: Any) -> torch.Tensor:
    """SGLang's row table `req_to_token`: KV slot of (row, position), int32 [rows, width]."""
    return runner.req_to_token_pool.req_to_token  # type: ignore[no-any-return]


def kv_buffers(runner: Any, layers: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """K and V of every layer, [slots, Hkv, D]."""
    pool = runner.token_to_kv_pool
    return (
        [pool.get_key_buffer(i) for i in range(layers)],
        [pool.get_value_buffer(i) for i in range(layers)],
    )


def context_limit(runner: Any) -> int:
    """Longest sequence of the server in tokens."""
    return int(runner.model_config.context_len)


def most_requests(runner: Any) -> int:
    """Requests that the scheduler runs at once."""
    return int(runner.max_running_requests)


def committed_lengths(batch: Any) -> list[int]:
    """Committed tokens of each request of a decode batch."""
    lengths = batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu
    return [int(n) for n in lengths.tolist()]


def is_last_piece(request: Any) -> bool:
    """The prompt piece in flight is the request's last."""
    return int(request.inflight_middle_chunks) <= 0


def tokens_left(request: Any) -> int:
    """Tokens that a request may still emit."""
    return int(request.sampling_params.max_new_tokens) - len(request.output_ids)


def fail_request(request: Any, message: str) -> None:
    """End a request with an internal error once the step is settled."""
    from http import HTTPStatus

    request.to_finish = FINISH_ABORT(
        message, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"
    )


def stock_batch(runner: Any, algorithm: Any, **arrays: Any) -> Any:
    """A ForwardBatch in the shape that stock attention takes for a masked verify forward."""
    batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        spec_algorithm=algorithm,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        return_hidden_states_before_norm=False,
        **arrays,
    )
    runner.kv_index_translator.bind_own_plan(batch)
    return batch


def register_config(kind: str, config_class: type) -> None:
    """Make transformers (and so SGLang) read `model_type` `kind` with `config_class`."""
    from transformers import AutoConfig

    AutoConfig.register(kind, config_class, exist_ok=True)


__all__ = [
    "ADMISSION",
    "REPORT",
    "RESOLVE",
    "ROW_WIDTH",
    "STATE_KIND",
    "VERIFY_KIND",
    "BaseSpecWorker",
    "CaptureHiddenMode",
    "CustomSpecAlgo",
    "FutureMap",
    "GenerationBatchResult",
    "HookType",
    "LogitsProcessor",
    "LogitsProcessorOutput",
    "MergedColumnParallelLinear",
    "ParallelLMHead",
    "QKVParallelLinear",
    "RMSNorm",
    "RadixAttention",
    "RowParallelLinear",
    "SglangModelConfig",
    "SiluAndMul",
    "SpecInput",
    "SpeculativeAlgorithm",
    "VocabParallelEmbedding",
    "add_hook",
    "committed_lengths",
    "context_limit",
    "default_weight_loader",
    "fail_request",
    "from_rank_zero",
    "get_alloc_page_size",
    "get_alloc_reserve_per_decode",
    "graph_capture",
    "is_last_piece",
    "kv_buffers",
    "most_requests",
    "register_config",
    "row_table",
    "stock_batch",
    "tensor_model_parallel_all_gather",
    "tensor_model_parallel_all_reduce",
    "tensor_parallel",
    "tokens_left",
]
