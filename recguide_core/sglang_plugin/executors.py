"""Runs a packed step through the served module: one ragged forward over the row table.

The read-out, sampling and the copy to the host are those of the embedded engine's runner. Knows
no SGLang: the module is anything with `forward_rows`, `head`, `geometry` and an adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.runner import PreparedStep, TorchRunner
from recguide_core.kernels import launch, tiles
from recguide_core.kernels.backends import Target, reasons
from recguide_core.kernels.ops import Geometry
from recguide_core.kernels.readout_torch import HostReadings, Readings, unpacked
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.transformer import TokenBatch
from recguide_core.sglang_plugin.row_attention import KernelRowAttention, TorchRowAttention
from recguide_core.sglang_plugin.row_cache import RowCache

Agree = Callable[[torch.Tensor], torch.Tensor]
MakeKernels = Callable[[int, int], Any]


class RowModel:
    """The served module in the shape that `TorchRunner` expects of a loaded model."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.config = module.geometry
        self.transformer = self
        self.device: torch.device = module.weight_device
        self.dtype: torch.dtype = module.weight_dtype

    @property
    def adapter(self) -> Any:
        return self.module.adapter

    def forward(self, batch: TokenBatch, attention: Any) -> torch.Tensor:
        return self.module.forward_rows(batch, attention)  # type: ignore[no-any-return]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.module.head(hidden)  # type: ignore[no-any-return]


class ModuleRunner(TorchRunner):
    """What every layout shares: the module, the cache, and ranks that must decide alike.

    Args:
        agree: turns this rank's statistics into those of rank 0.
    """

    def __init__(self, module: Any, cache: RowCache, agree: Agree) -> None:
        model: Any = RowModel(module)
        pool: Any = cache
        super().__init__(model, pool)
        self.cache = cache
        self._agree = agree

    def adapter_tokens(self, step: PackedStep) -> torch.Tensor | bool | None:
        """Which packed tokens take the draft adapter, as `TokenBatch.adapter` wants it."""
        if self.model.transformer.adapter is None or not step.rows.adapter.any():
            return None
        mask = step.adapter_tokens
        return True if mask.all() else self._up(np.flatnonzero(mask))

    def on_host(self, readings: Readings) -> HostReadings:
        """As rank 0 has it: the ranks' logits may differ in the last bit."""
        return unpacked(self._agree(readings.packed()))


class FlatExecutor(ModuleRunner):
    """One ragged forward over all requests' rows.

    Args:
        parts: tensor-parallel ranks that share the heads.
    """

    def __init__(
        self, module: Any, cache: RowCache, agree: Agree = lambda t: t, parts: int = 1
    ) -> None:
        super().__init__(module, cache, agree)
        self.parts = parts
        self.why_twin = why_no_kernel(self.model.config, parts, self.device, module.weight_dtype)
        self._ops: dict[tuple[int, int], Any] = {}
        self._make: MakeKernels | None = None

    def prepare(self, step: PackedStep, needs: ReadoutNeeds) -> PreparedStep:
        """Upload a step's indices and plan its attention over the row table."""
        total = len(step.positions)
        readout = None if len(step.readout) == total else self._up(step.readout)
        batch = TokenBatch(
            self._up(step.rows.tokens),
            self._up(step.positions),
            self.adapter_tokens(step),
            readout,
        )
        attention: Any = self.attention_of(step)
        return PreparedStep(batch, attention, self.sampling_rows(step, needs))

    def attention_of(self, step: PackedStep) -> TorchRowAttention | KernelRowAttention:
        """The packed kernel on CUDA where a compiled configuration exists, else the twin."""
        ops = None
        if self.why_twin is None:
            ops = self._kernels(len(step.positions), len(step.slots))
        if ops is None:
            return TorchRowAttention(self.cache, step, self.model.config.group)
        return KernelRowAttention(self.cache, step, ops)

    def _kernels(self, tokens: int, requests: int) -> Any:
        """Kernels for the bucket that holds the step, None when no bucket does."""
        bucket = launch.bucket(tokens, launch.TOKEN_BUCKETS)
        rows = launch.bucket(requests, launch.REQUEST_BUCKETS)
        if bucket is None or rows is None:
            return None
        key = (bucket, rows)
        if key not in self._ops:
            self._ops[key] = self.maker()(*key)
        return self._ops[key]

    def maker(self) -> MakeKernels:
        """Makes kernels that share this executor's scratch memory."""
        if self._make is None:
            adapter: DraftAdapter | None = self.model.transformer.adapter
            self._make = kernel_maker(self.model.config, adapter, self.parts, self.device)
        return self._make


def why_no_kernel(config: Any, parts: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why attention runs on the torch twin, None where the packed kernel serves this model."""
    geometry = geometry_of(config, parts)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    target = Target(
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        head_dim=geometry.head_dim,
        group=geometry.group,
        page=1,
        eos_ids=len(geometry.eos_ids),
        capability=capability,
    )
    return reasons(target)["triton"]


def kernel_maker(
    config: Any, adapter: DraftAdapter | None, parts: int, device: torch.device
) -> MakeKernels:
    """Makes `TritonRoundOps` for at most (tokens, requests) on a CUDA device.

    All of them share one scratch memory, sized for the largest bucket: they run one at a time.
    """
    from recguide_core.kernels.cuda import multiprocessors
    from recguide_core.kernels.ops_triton import TritonRoundOps
    from recguide_core.kernels.workspace import Workspace

    geometry, processors = geometry_of(config, parts), multiprocessors(device)
    rank = 0 if adapter is None else len(adapter.down[0])
    rank = rank if rank in launch.LORA_RANKS else 0
    tokens, requests = launch.TOKEN_BUCKETS[-1], launch.REQUEST_BUCKETS[-1]
    most = tiles.capacity(
        tokens, requests, geometry.group, launch.WIDE.block_m, geometry.kv_heads,
        launch.PROGRAMS_PER_SM * processors,
    )  # fmt: skip
    workspace = Workspace.sized(geometry, tokens, most.partials, device, rank)

    def make(tokens: int, requests: int) -> Any:
        return TritonRoundOps(
            geometry, tokens, requests, device, processors, rank=rank, workspace=workspace
        )

    return make


def geometry_of(config: Any, parts: int) -> Geometry:
    """What the kernels must know of this rank's heads; the row table has pages of one slot."""
    heads, kv_heads = config.heads // parts, max(1, config.kv_heads // parts)
    return Geometry(
        heads, kv_heads, config.head_dim, config.vocab, 1, config.mask_id, config.eos_ids
    )
