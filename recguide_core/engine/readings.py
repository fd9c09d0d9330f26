"""What a step's executor gives back, and what it is asked for. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recguide_core.engine.rows import PackedStep
from recguide_core.records import FloatArray, IntArray, Sampling


@dataclass(slots=True)
class StepReadings:
    """Host copies of a step's Q readouts (see `kernels.readout_torch.Readings`).

    Attributes:
        token, alt: int64 [Q]; confidence, margin, entropy: float32 [Q].
        logprob: of `token`, float32 [Q], NaN where not asked for; `top`: readout index ->
            [(id, logprob), ...] of the best alternatives.
        hidden: input of the head of every packed token when the step asked for it, a tensor
            [T, hidden] on the device.
    """

    token: IntArray
    alt: IntArray
    confidence: FloatArray
    margin: FloatArray
    entropy: FloatArray
    logprob: FloatArray | None = None
    top: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    hidden: Any = None

    @classmethod
    def of_device(cls, ids: npt.NDArray[np.int32], stats: FloatArray) -> StepReadings:
        """From the columns that the read-out kernel writes.

        Args:
            ids: token and alternative, int32 [Q, 2]; stats: confidence, p2, margin, entropy and
                log-sum-exp, float32 [Q, 5].
        """
        wide = ids.astype(np.int64)
        confidence, margin, entropy = (stats[:, column].copy() for column in (0, 2, 3))
        return cls(wide[:, 0], wide[:, 1], confidence, margin, entropy)

    @classmethod
    def empty(cls, hidden: Any = None) -> StepReadings:
        """Of a step without read-outs (a prompt chunk in the middle)."""
        none, nothing = np.empty(0, np.int64), np.empty(0, np.float32)
        return cls(none, none, nothing, nothing, nothing, hidden=hidden)


@dataclass(slots=True)
class ReadoutNeeds:
    """Per-request wishes that change the read-out, by slot; empty for plain greedy steps.

    Attributes:
        sampling: slots that sample or bias logits.
        logprobs: slot -> alternatives to report.
        hidden: keep the hidden states of all tokens.
    """

    sampling: dict[int, Sampling] = field(default_factory=dict)
    logprobs: dict[int, int] = field(default_factory=dict)
    hidden: bool = False


class Executor(Protocol):
    """What the engine loop needs of whatever runs a step."""

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        """Run the forward of `step`."""
