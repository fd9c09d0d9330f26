"""Position-keyed Gumbel-max sampling and the filters that precede it, in torch.

t_i = argmax(filtered(z_i / T) + g(seed, position_i)), with g from a counter-based hash. The noise
of a position does not depend on how it is computed (AR step, verify row, draft row, batch), so
every method emits exactly the tokens of seeded AR sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MASK32 = 0xFFFFFFFF
NOISE_VALUES = 1 << 23
FILTERED = -1e30
"""Score of a token that may not be chosen; finite, so that 0 x score stays 0."""


@dataclass(slots=True)
class SamplingRows:
    """Settings of the readouts that sample, tensors over S of the Q readouts.

    Attributes:
        rows: their indices, int64 [S]; `position`: position that each predicts, int64 [S].
        seed: int64 [S]; `temperature`, `top_p`, `min_p`: float32 [S]; `top_k`: int64 [S], 0 = off.
    """

    rows: torch.Tensor
    position: torch.Tensor
    seed: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit integer mixer with low bias, on the low half of int64 values."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK32
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK32
    return x ^ (x >> 16)


def uniform_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int) -> torch.Tensor:
    """float32 [S, vocab] in (0, 1), a pure function of (seed, position, token id)."""
    return _uniform(_bits(position_key(seed_key(seed), position), vocab))


def seed_key(seed: torch.Tensor) -> torch.Tensor:
    """What a seed contributes to the hash: 32 bits in int64 [S]."""
    return _mix((seed & _MASK32) ^ _mix((seed >> 32 & _MASK32) ^ 0x9E3779B9))


def position_key(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Key of one position's noise, 32 bits in int64 [S], from `seed_key` and the position."""
    return _mix((seed + position * 0x85EBCA6B) & _MASK32)


def _bits(key: torch.Tensor, vocab: int) -> torch.Tensor:
    """23 hashed bits of every token id under each key, int64 [S, vocab]."""
    ids = torch.arange(vocab, device=key.device, dtype=torch.int64)
    return _mix(_mix((ids * 0x9E3779B1) & _MASK32).unsqueeze(0) ^ key.unsqueeze(1)) >> 9


def _uniform(bits: torch.Tensor) -> torch.Tensor:
    # 23 bits: with 24 the half no longer fits float32, 1 comes out, and its noise is infinite.
    return (bits.float() + 0.5) * 2.0**-23


def noise_table() -> torch.Tensor:
    """Every value that g can take, by the 23 hashed bits: float32 [2^23] on the CPU (32 MiB).

    A kernel that looks noise up has the host's, however its own logarithm rounds.
    """
    return -torch.log(-torch.log(_uniform(torch.arange(NOISE_VALUES))))


def gumbel_noise(seed: torch.Tensor, position: torch.Tensor, vocab: int) -> torch.Tensor:
    """g(seed, position): standard Gumbel noise, float32 [S, vocab]."""
    return gumbel_of(position_key(seed_key(seed), position), vocab)


def gumbel_of(key: torch.Tensor, vocab: int) -> torch.Tensor:
    """The noise of `position_key`s, float32 [S, vocab]."""
    return -torch.log(-torch.log(_uniform(_bits(key, vocab))))


def gumbel_looked_up(key: torch.Tensor, table: torch.Tensor, vocab: int) -> torch.Tensor:
    """`gumbel_of` by `noise_table`: the host's noise on any device, float32 [S, vocab]."""
    return table[_bits(key, vocab)]


def filter_scores(scores: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Drop what top-k, top-p and min-p exclude; scores [S, V] are already divided by T.

    Ties at a cut keep the lower token ids (a stable sort decides the rank).
    """
    plain = bool((rows.top_k == 0).all() and (rows.top_p >= 1).all() and (rows.min_p <= 0).all())
    return scores if plain else filter_sorted(scores, rows.top_k, rows.top_p, rows.min_p)


def filter_sorted(
    scores: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """`filter_scores` for rows of any settings, without asking whether one filters: graph-safe.

    Args:
        top_k: int64 [S], 0 = off; top_p, min_p: float32 [S].
    """
    ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    rank = torch.arange(scores.shape[-1], device=scores.device)
    most = torch.where(top_k > 0, top_k, scores.shape[-1]).unsqueeze(1)
    top_p = top_p.unsqueeze(1)
    # A rounded sum can reach 1 before the tail; a row without top-p keeps all of it, as alone.
    keep = (rank < most) & ((before < top_p) | (top_p >= 1))
    keep &= probability >= min_p.unsqueeze(1) * probability[:, :1]
    keep[:, 0] = True
    kept = torch.zeros_like(keep).scatter_(1, order, keep)
    return scores.masked_fill(~kept, FILTERED)


def perturb(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Scores whose argmax is the sampled token: logits float32 [S, V] -> [S, V]."""
    scores = filter_scores(logits / rows.temperature.unsqueeze(1), rows)
    return scores + gumbel_noise(rows.seed, rows.position, logits.shape[-1])
