"""Read-out of logits in torch: the oracle of the fused kernel and the CPU default.

MASK never wins; ties go to the lowest id in both ranks (argmax, remove, argmax). Probabilities of
greedy rows are those of the model; of sampling rows those of the perturbed scores, so that the
margin says how close the two leading candidates came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from recguide_core.kernels.sampling_torch import FILTERED, SamplingRows, perturb
from recguide_core.records import FloatArray, IntArray

HostReadings: TypeAlias = tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray]
"""The attributes of `Readings` as numpy arrays, in order."""
_CHOOSABLE = -1e20
"""Scores below it are `FILTERED` ones, divided by any temperature."""


@dataclass(slots=True)
class Readings:
    """What the engine needs of Q readouts.

    Attributes:
        token: chosen token; `alt`: best token other than it, MASK and EOS, -1 when the filters of
            a sampling row leave none. int64 [Q].
        confidence: p1; `margin`: p1 - p2, MASK removed, EOS kept. float32 [Q].
        entropy: of the model's distribution without MASK, nats, float32 [Q].
            NaN marks a row with NaN or infinite logits.
    """

    token: torch.Tensor
    alt: torch.Tensor
    confidence: torch.Tensor
    margin: torch.Tensor
    entropy: torch.Tensor

    def packed(self) -> torch.Tensor:
        """All five as one float64 [5, Q] tensor: a single copy to the host (ids are exact)."""
        parts = (self.token, self.alt, self.confidence, self.margin, self.entropy)
        return torch.stack([p.double() for p in parts])

    def on_host(self) -> HostReadings:
        """The five in order, as they are on a CPU, else through one copy."""
        if self.token.device.type == "cpu":
            return (
                self.token.numpy(),
                self.alt.numpy(),
                self.confidence.numpy(),
                self.margin.numpy(),
                self.entropy.numpy(),
            )
        return unpacked(self.packed())


def unpacked(packed: torch.Tensor) -> HostReadings:
    """Host copies of `Readings.packed`."""
    token, alt, *shares = packed.cpu().numpy()
    confidence, margin, entropy = np.asarray(shares, np.float32)
    return token.astype(np.int64), alt.astype(np.int64), confidence, margin, entropy


def read_out(
    logits: torch.Tensor,
    mask_id: int,
    eos_ids: tuple[int, ...],
    sampling: SamplingRows | None = None,
) -> Readings:
    """Token, runner-up and statistics of logits float32 [Q, V]; `logits` is overwritten."""
    logits[:, mask_id] = FILTERED
    scores = None
    if sampling is not None:
        scores = logits.clone()
        scores[sampling.rows] = perturb(logits[sampling.rows], sampling)
    return read_scores(logits, scores, eos_ids)


def read_scores(
    logits: torch.Tensor, scores: torch.Tensor | None, eos_ids: tuple[int, ...]
) -> Readings:
    """`read_out` with MASK filtered and the scores made; both are overwritten.

    Args:
        scores: what the tokens are chosen by, float32 [Q, V]; None = the logits.
    """
    shares = logits.softmax(-1)
    lse = logits.amax(-1) - shares.amax(-1).log()
    # Rounding can leave a confident row a hair below zero.
    entropy = (lse - (shares * logits).sum(-1)).clamp(min=0)
    if scores is None:
        scores = logits
    else:
        shares = scores.softmax(-1)

    token = lowest_best(scores)
    scores.scatter_(1, token, FILTERED)
    alt = lowest_best(scores)
    confidence = shares.gather(1, token).squeeze(1)
    margin = confidence - shares.gather(1, alt).squeeze(1)
    for eos in eos_ids:
        scores[:, eos] = FILTERED
    alt = torch.where(is_any(alt, eos_ids), lowest_best(scores), alt)
    alt = torch.where(scores.gather(1, alt) < _CHOOSABLE, -1, alt)
    return Readings(token.squeeze(1), alt.squeeze(1), confidence, margin, entropy)


def lowest_best(scores: torch.Tensor) -> torch.Tensor:
    """Lowest id of the highest score, int64 [Q, 1].

    On a CPU by numpy, whose search along a row is vectorized and ten times as fast as torch's.
    """
    if scores.device.type != "cpu":
        return scores.argmax(-1, keepdim=True)
    return torch.from_numpy(scores.numpy().argmax(-1, keepdims=True))


def is_any(tokens: torch.Tensor, ids: tuple[int, ...]) -> torch.Tensor:
    """True where a token is one of a few ids."""
    hit = tokens == ids[0]
    for other in ids[1:]:
        hit |= tokens == other
    return hit


def log_probabilities(
    logits: torch.Tensor, tokens: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities under the verifier (temperature 1, MASK removed).

    Args:
        logits: float32 [S, V] before `read_out`; tokens: int64 [S]; top: alternatives wanted.

    Returns:
        logprob of `tokens` [S]; top ids [S, top] and their logprobs [S, top], ties by lowest id.
    """
    logp = logits.log_softmax(-1)
    ordered, ids = torch.sort(logp, dim=-1, descending=True, stable=True)
    return logp.gather(1, tokens.unsqueeze(1)).squeeze(1), ids[:, :top], ordered[:, :top]
