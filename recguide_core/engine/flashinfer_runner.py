"""The torch runner with FlashInfer's attention where a step is uniform (one row a request)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recguide_core.engine.readings import ReadoutNeeds
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.runner import PreparedStep, TorchRunner
from recguide_core.kernels.attention_torch import PackedLayout
from recguide_core.kernels.flashinfer_ranges import (
    FlashInferAttention,
    RangesPlan,
    ranges_plan,
    why_not,
)
from recguide_core.kvcache import KVPool
from recguide_core.model.registry import LoadedModel


@dataclass(frozen=True, slots=True)
class _Uniform:
    """Attention of one step; the wrapper is planned anew when another step used it last."""

    shared: FlashInferAttention
    plan: RangesPlan

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.shared.planned is not self.plan:
            self.shared.prepare(self.plan)
        return self.shared.attend(layer, q, k, v)


class FlashInferRunner(TorchRunner):
    """`TorchRunner` whose uniform steps attend through FlashInfer.

    Attributes:
        refused: reason -> steps that went through torch attention.
    """

    def __init__(self, model: LoadedModel, pool: KVPool) -> None:
        super().__init__(model, pool)
        self._flashinfer = FlashInferAttention(pool, model.config.group)
        self.refused: dict[str, int] = {}

    def prepare(self, step: PackedStep, needs: ReadoutNeeds) -> PreparedStep:
        prepared = super().prepare(step, needs)
        layout = PackedLayout(step.slots, step.offset, step.prefix, step.vis)
        reason = why_not(layout)
        if reason is not None:
            self.refused[reason] = self.refused.get(reason, 0) + 1
            return prepared
        prepared.attention = _Uniform(self._flashinfer, ranges_plan(layout, self.pool))
        return prepared
