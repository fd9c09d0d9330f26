"""Requests that want more than the kernels read out: sampling, logit bias, logprobs.

Their tokens run in the same captured forward as everybody's; only their rows are read out again,
by the torch runner's own code, from the hidden states that the forward leaves behind. So their
noise is the one of `kernels.sampling_torch`, bit for bit, and the others stay as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, take_rows
from recguide_core.kernels.head import OutputHead
from recguide_core.records import MAX_BLOCK, BoolArray, IntArray

if TYPE_CHECKING:
    from recguide_core.engine.runner import TorchRunner

_COPIES = 4
"""Logits that reading one row may hold at once: the row, its clone, scores and sorted scores."""


class Wishes:
    """Reads rows of a step again.

    Args:
        runner: whose read-out it is; head: makes logits, in chunks of its buffer.
    """

    def __init__(self, runner: TorchRunner, head: OutputHead) -> None:
        self._runner = runner
        self._head = head

    def rows(self, step: PackedStep, needs: ReadoutNeeds) -> BoolArray | None:
        """Rows with a read-out of requests that have wishes, bool [n]; None without any."""
        slots = [*needs.sampling, *needs.logprobs]
        if not slots:
            return None
        wished = np.isin(step.rows.request, slots) & (step.read_start[1:] > step.read_start[:-1])
        return wished if wished.any() else None

    def read(
        self,
        step: PackedStep,
        wished: BoolArray,
        needs: ReadoutNeeds,
        hidden: torch.Tensor,
        into: StepReadings,
    ) -> None:
        """Overwrite what the kernels read for these rows.

        Args:
            hidden: normed final states of all packed tokens [T, hidden].
        """
        counts = step.read_start[1:] - step.read_start[:-1]
        if needs.logprobs:
            into.logprob = np.full(int(counts.sum()), np.nan, np.float32)
        for chunk in self._chunks(np.flatnonzero(wished), counts):
            kept = np.zeros(len(wished), bool)
            kept[chunk] = True
            # Branches are read like any other row; whom they see no longer matters.
            part, at = take_rows(step, kept, orphans=True), np.repeat(kept, counts).nonzero()[0]
            tokens = torch.from_numpy(step.readout[at]).to(hidden.device)
            logits = self._head.project(hidden[tokens])
            sampling = self._runner.sampling_rows(part, needs)
            _merge(into, self._runner.read(logits, part, needs, sampling), at)

    def _chunks(self, rows: IntArray, counts: IntArray) -> list[IntArray]:
        """Rows in runs that the head's buffer holds `_COPIES` times over."""
        most = max(self._head.rows // _COPIES, MAX_BLOCK)
        chunks: list[list[int]] = []
        size = most + 1
        for row in rows.tolist():
            count = int(counts[row])
            if size + count > most:
                chunks.append([])
                size = 0
            chunks[-1].append(row)
            size += count
        return [np.array(chunk) for chunk in chunks]


def _merge(into: StepReadings, part: StepReadings, at: IntArray) -> None:
    for name in ("token", "alt", "confidence", "margin", "entropy"):
        getattr(into, name)[at] = getattr(part, name)
    if part.logprob is not None and into.logprob is not None:
        into.logprob[at] = part.logprob
        into.top.update({int(at[i]): pairs for i, pairs in part.top.items()})
