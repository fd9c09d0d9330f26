"""What the device of a run can do: measured on a CPU, the makers' figures for a known GPU.

A small model's weights lie in a CPU's caches, which are read several times as fast as memory. So
the reading rate is measured on a buffer as large as the weights, not on a large one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

from recguide_core.bench.config import BenchConfig
from recguide_core.bench.floor import Peaks
from recguide_core.inventory import cpu_name, short_gpu_name
from recguide_core.model.config import ModelConfig
from recguide_core.policy.devices import GPUS, MODELS, ModelSize

REPEATS = 7
SMALLEST, LARGEST = 1 << 20, 256 << 20
"""Bytes of the buffer that is read."""
_SIDE = 768


def model_size(config: BenchConfig, model: ModelConfig) -> ModelSize:
    """Size of the model whose forwards take the run's time: the clock's, or the loaded one."""
    if config.clock != "wall":
        return MODELS[config.clock.partition("/")[2]]
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return ModelSize.dense(
        config.model, model.layers, model.hidden, model.intermediate, queries, keys, model.vocab
    )


def element_size(config: BenchConfig) -> int:
    """Bytes of a number; published clocks are of bf16."""
    return 4 if config.clock == "wall" and config.dtype == "float32" else 2


def peaks_of(config: BenchConfig, size: ModelSize) -> Peaks | None:
    """Peaks of the device that the run's time is of; None for a GPU that nobody described."""
    if config.clock != "wall":
        name = config.clock.partition("/")[0]
    elif config.device == "cpu":
        buffer = int(size.weight_bytes) * element_size(config) // 2
        return _cpu_peaks(buffer, config.threads or torch.get_num_threads())
    else:
        name = short_gpu_name(torch.cuda.get_device_name(config.device)).lower()
    found = GPUS.get(name)
    if found is None:
        return None
    return Peaks(found.name, found.bandwidth, found.flops, "the maker's figures, bf16")


@cache
def _cpu_peaks(weight_bytes: int, threads: int) -> Peaks:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        numbers = min(max(weight_bytes, SMALLEST), LARGEST) // 4
        buffer = torch.ones(numbers)
        rows = buffer[: numbers // _SIDE * _SIDE].view(-1, _SIDE)
        vector, square = torch.ones(_SIDE), torch.ones(_SIDE, _SIDE)
        reading = min(_seconds(buffer.sum), _seconds(lambda: rows @ vector))
        computing = _seconds(lambda: square @ square)
    finally:
        torch.set_num_threads(before)
    source = f"measured on {threads} thread(s): reading {numbers * 4 / 1e6:.0f} MB, float32 product"
    return Peaks(cpu_name(), numbers * 4 / reading, 2 * _SIDE**3 / computing, source)


def _seconds(call: Callable[[], object]) -> float:
    """The shortest of a few calls, the first one left out: what others take is no property."""
    call()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best
