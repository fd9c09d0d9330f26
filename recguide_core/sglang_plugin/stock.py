"""The fallback layouts: rows padded to one width, through SGLang's own attention back ends.

Every request brings `width` tokens and a boolean mask over its prefix and those tokens, the shape
of a tree verification. Its rows lie in the order in which they were packed, so the commit row
lands in its final slots and every other row in the reserve behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.kernels.attention_torch import in_flight_mask
from recguide_core.records import BoolArray, IntArray
from recguide_core.sglang_plugin.executors import Agree, ModuleRunner
from recguide_core.sglang_plugin.row_cache import RowCache


@dataclass(frozen=True, slots=True)
class UniformStep:
    """A packed step as R requests of W tokens each.

    Attributes:
        width: W; tokens, positions: int64 [R * W]; padding repeats position P.
        place: where each packed token went, int64 [T].
        mask: bool, the requests' [W, P + W] masks one after another, flat.
    """

    width: int
    tokens: IntArray
    positions: IntArray
    place: IntArray
    mask: BoolArray


def uniform(step: PackedStep, mask_id: int) -> UniformStep:
    """Pad a step to the width of its longest request."""
    counts = np.diff(step.offset)
    width = int(counts.max())
    first = np.repeat(np.arange(len(counts)) * width, counts)
    within = np.arange(len(step.positions)) - np.repeat(step.offset[:-1], counts)
    place = first + within
    tokens = np.full(len(counts) * width, mask_id, np.int64)
    positions = np.repeat(step.prefix, width)
    tokens[place], positions[place] = step.rows.tokens, step.positions
    masks = []
    for r, n in enumerate(counts.tolist()):
        lo, prefix = int(step.offset[r]), int(step.prefix[r])
        mask = np.zeros((width, prefix + width), bool)
        mask[:, :prefix] = True
        mask[:n, prefix : prefix + n] = in_flight_mask(step.vis[lo : lo + n], lo, n)
        # A padding token sees itself; nobody sees it.
        pad = np.arange(n, width)
        mask[pad, prefix + pad] = True
        masks.append(mask.reshape(-1))
    return UniformStep(width, tokens, positions, place, np.concatenate(masks))


class UniformExecutor(ModuleRunner):
    """Steps through SGLang's runner and stock attention.

    Args:
        stock: runs the forwards, see `stock_bridge.StockBridge`: `extend()` -> logits [n, V] of
            the current batch's prompts, `verify(...)` -> logits [R * W, V].
    """

    def __init__(self, module: Any, cache: RowCache, agree: Agree, stock: Any) -> None:
        super().__init__(module, cache, agree)
        self._stock = stock

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        with torch.no_grad():
            if step.chunks:
                logits = self._stock.extend()
            else:
                logits = self._padded(step)
            return self.read(logits.float(), step, needs, self.sampling_rows(step, needs))

    def _padded(self, step: PackedStep) -> torch.Tensor:
        config = self.model.config
        made = uniform(step, config.mask_id)
        adapter: torch.Tensor | None = None
        if self.model.transformer.adapter is not None and step.rows.adapter.any():
            adapter = self._up(made.place[step.adapter_tokens])
        logits = self._stock.verify(
            width=made.width,
            tokens=self._up(made.tokens),
            positions=self._up(made.positions),
            mask=self._up(made.mask),
            rows=self._up(self.cache.rows_of(step)),
            prefix=torch.from_numpy(step.prefix.copy()),
            adapter=adapter,
        )
        chosen: torch.Tensor = logits[self._up(made.place[step.readout])]
        return chosen
