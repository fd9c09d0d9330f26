"""Runs one packed step on a device: upload, forward, head, read-out, one copy back.

Knows rows and tensors; knows nothing of methods, requests or policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.repetition import Repetition
from recguide_core.engine.rows import PackedStep
from recguide_core.kernels.attention_torch import PackedLayout, TorchAttention
from recguide_core.kernels.readout_torch import (
    HostReadings,
    Readings,
    log_probabilities,
    read_out,
)
from recguide_core.kernels.sampling_torch import FILTERED, SamplingRows
from recguide_core.kvcache import KVPool
from recguide_core.model.registry import LoadedModel
from recguide_core.model.transformer import Attention, TokenBatch
from recguide_core.records import IntArray


@dataclass(slots=True)
class PreparedStep:
    """Tensors of a step, ready to run."""

    batch: TokenBatch
    attention: Attention
    sampling: SamplingRows | None


class TorchRunner:
    """The torch back end: CPU default, and the eager path on CUDA.

    Attributes:
        repetition: runs every forward twice while the host's share is measured, else None.
    """

    def __init__(self, model: LoadedModel, pool: KVPool) -> None:
        self.model = model
        self.pool = pool
        self.device = model.transformer.device
        self.repetition: Repetition | None = None

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        with torch.inference_mode():
            prepared = self.prepare(step, needs)
            if self.repetition is None:
                return self._run(prepared, step, needs)
            return self.repetition(
                partial(self._run, prepared, step, needs), partial(self.repeat, prepared)
            )

    def prepare(self, step: PackedStep, needs: ReadoutNeeds) -> PreparedStep:
        """Upload a step's indices and plan its attention."""
        total = len(step.positions)
        adapter: torch.Tensor | bool | None = None
        if self.model.transformer.adapter is not None and step.rows.adapter.any():
            everywhere = bool(step.rows.adapter.all())
            adapter = everywhere or self._up(np.flatnonzero(step.adapter_tokens))
        readout = None if len(step.readout) == total else self._up(step.readout)
        batch = TokenBatch(
            self._up(step.rows.tokens), self._up(step.positions), adapter, readout, needs.hidden
        )
        layout = PackedLayout(step.slots, step.offset, step.prefix, step.vis)
        attention = TorchAttention(self.pool, layout, self.model.config.group)
        return PreparedStep(batch, attention, self.sampling_rows(step, needs))

    def repeat(self, prepared: PreparedStep) -> None:
        """Forward, head and read-out of prebuilt tensors; results are dropped."""
        transformer, batch = self.model.transformer, prepared.batch
        hidden = transformer.forward(batch, prepared.attention)
        if batch.readout is not None:
            if not len(batch.readout):
                return
            hidden = hidden[batch.readout] if batch.keep_hidden else hidden
        self.on_host(self._read_out(transformer.head(hidden), prepared.sampling))

    def _run(self, prepared: PreparedStep, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        transformer = self.model.transformer
        every = transformer.forward(prepared.batch, prepared.attention)
        kept = transformer.normed(every) if needs.hidden else None
        if not len(step.readout):
            return StepReadings.empty(kept)
        pick = prepared.batch.readout if needs.hidden else None
        logits = transformer.head(every if pick is None else every[pick])
        readings = self.read(logits, step, needs, prepared.sampling)
        readings.hidden = kept
        return readings

    def read(
        self,
        logits: torch.Tensor,
        step: PackedStep,
        needs: ReadoutNeeds,
        sampling: SamplingRows | None,
    ) -> StepReadings:
        """Read out logits float32 [Q, vocab] of a step (overwritten) and bring them to the host."""
        plain = self._logits_for_logprobs(logits, step, needs)
        self._bias(logits, step, needs)
        readings = StepReadings(*self.on_host(self._read_out(logits, sampling)))
        if plain is not None:
            self._add_logprobs(readings, plain, step, needs)
        return readings

    def _read_out(self, logits: torch.Tensor, sampling: SamplingRows | None) -> Readings:
        config = self.model.config
        return read_out(logits, config.mask_id, config.eos_ids, sampling)

    def on_host(self, readings: Readings) -> HostReadings:
        """Bring a read-out to the host."""
        return readings.on_host()

    def _up(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _readout_slots(self, step: PackedStep) -> IntArray:
        """Slot of each readout, int64 [Q]."""
        return np.repeat(step.rows.request, np.diff(step.read_start))

    def sampling_rows(self, step: PackedStep, needs: ReadoutNeeds) -> SamplingRows | None:
        """Settings of the readouts that sample, None when all are greedy."""
        chosen = {s: p for s, p in needs.sampling.items() if not p.greedy}
        if not chosen:
            return None
        slots = self._readout_slots(step)
        rows = np.flatnonzero(np.isin(slots, list(chosen)))
        if not len(rows):
            return None
        settings = [chosen[s] for s in slots[rows].tolist()]

        def column(name: str, dtype: type) -> torch.Tensor:
            return self._up(np.array([getattr(p, name) for p in settings], dtype=dtype))

        return SamplingRows(
            rows=self._up(rows),
            position=self._up(step.target[rows]),
            seed=column("seed", np.int64),
            temperature=column("temperature", np.float32),
            top_p=column("top_p", np.float32),
            min_p=column("min_p", np.float32),
            top_k=column("top_k", np.int64),
        )

    def _bias(self, logits: torch.Tensor, step: PackedStep, needs: ReadoutNeeds) -> None:
        biased = {s: p.logit_bias for s, p in needs.sampling.items() if p.logit_bias}
        if not biased:
            return
        slots = self._readout_slots(step)
        for slot, bias in biased.items():
            rows = self._up(np.flatnonzero(slots == slot))
            for token, amount in bias:
                logits[rows, token] += amount

    def _logits_for_logprobs(
        self, logits: torch.Tensor, step: PackedStep, needs: ReadoutNeeds
    ) -> torch.Tensor | None:
        if not needs.logprobs:
            return None
        plain = logits.clone()
        plain[:, self.model.config.mask_id] = FILTERED
        return plain

    def _add_logprobs(
        self, readings: StepReadings, plain: torch.Tensor, step: PackedStep, needs: ReadoutNeeds
    ) -> None:
        slots = self._readout_slots(step)
        rows = np.flatnonzero(np.isin(slots, list(needs.logprobs)))
        readings.logprob = np.full(len(slots), np.nan, np.float32)
        if not len(rows):
            return
        top = max(needs.logprobs.values())
        chosen = self._up(readings.token[rows])
        logprob, ids, values = log_probabilities(plain[self._up(rows)], chosen, top)
        readings.logprob[rows] = logprob.cpu().numpy()
        for place, row in enumerate(rows.tolist()):
            count = needs.logprobs[int(slots[row])]
            pairs = zip(ids[place, :count].tolist(), values[place, :count].tolist(), strict=True)
            readings.top[row] = list(pairs)
