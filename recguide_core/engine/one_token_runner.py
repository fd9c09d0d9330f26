"""The bitwise back end: tokens that decide run one by one, exactly as plain AR runs them alone.

The sums of a matrix product are added in an order that depends on how many tokens it is given, so a
verify forward and an AR step agree only up to rounding. Here every token whose K/V are committed
(prompt, AR step, verify row) goes through a forward of one token over a prefix of one length: the
same calls on the same shapes for every method, batch and chunk. Its logits, and the K/V that later
ones read, are then bit-identical by construction. Drafts and branches decide nothing and run as
always. Slow; for checking, on a CPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.runner import PreparedStep, TorchRunner
from recguide_core.kernels.attention_torch import PackedLayout, TorchAttention
from recguide_core.kernels.readout_torch import log_probabilities
from recguide_core.model.transformer import TokenBatch

NAME = "one-token"
_ALONE = np.array([[0, 1, 0, 0]])
"""Visible in-flight interval of a token that is alone: itself."""


class OneTokenRunner(TorchRunner):
    """A `TorchRunner` whose committed tokens are computed alone; CPU only."""

    def _run(self, prepared: PreparedStep, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        transformer, rows = self.model.transformer, step.rows
        total = len(step.positions)
        commits = np.repeat(rows.commit, rows.length)
        if commits.all():
            every = torch.empty(total, self.model.config.hidden, dtype=transformer.dtype)
        else:
            # The commit rows run along for the branches' sake; their K/V are then replaced.
            batch = replace(prepared.batch, readout=None)
            every = transformer.forward(batch, prepared.attention)
        owner = np.repeat(rows.request, rows.length)
        for token in np.flatnonzero(commits).tolist():
            every[token] = self._alone(step, token, int(owner[token]))[0]
        hidden = transformer.normed(every) if needs.hidden else None
        if not len(step.readout):
            return StepReadings.empty(hidden)
        # Copies, so that each starts at an address of the allocator's alignment.
        heads = [transformer.head(every[t : t + 1].clone()) for t in step.readout.tolist()]
        readings = self.read(torch.cat(heads), step, needs, prepared.sampling)
        readings.hidden = hidden
        return readings

    def _alone(self, step: PackedStep, token: int, slot: int) -> torch.Tensor:
        """Final hidden state [1, hidden] of a committed token; its K/V are written."""
        position = step.positions[token : token + 1]
        layout = PackedLayout(np.array([slot]), np.array([0, 1]), position, _ALONE)
        ids = step.rows.tokens[token : token + 1]
        batch = TokenBatch(torch.tensor(ids), torch.tensor(position), None, None)
        attention = TorchAttention(self.pool, layout, self.model.config.group)
        return self.model.transformer.forward(batch, attention)

    def _add_logprobs(
        self, readings: StepReadings, plain: torch.Tensor, step: PackedStep, needs: ReadoutNeeds
    ) -> None:
        slots = self._readout_slots(step)
        readings.logprob = np.full(len(slots), np.nan, np.float32)
        for row in np.flatnonzero(np.isin(slots, list(needs.logprobs))).tolist():
            count = needs.logprobs[int(slots[row])]
            chosen = torch.tensor(readings.token[row : row + 1])
            logprob, ids, values = log_probabilities(plain[row : row + 1].clone(), chosen, count)
            readings.logprob[row] = float(logprob[0])
            readings.top[row] = list(zip(ids[0].tolist(), values[0].tolist(), strict=True))
