"""Rotary tables: plain and YaRN frequencies, and the llama-4 query temperature.

Half-split ("NeoX") rotation over all head dimensions. The attention factor of YaRN scales cos and
sin; NLD's is 1 because mscale = mscale_all_dim.
"""

from __future__ import annotations

import math

import torch

from recguide_core.model.config import RopeConfig


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def attention_factor(rope: RopeConfig) -> float:
    """Scale of cos and sin (YaRN, arXiv 2309.00071 Sec. 3.4, in the DeepSeek two-mscale form)."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_scale(rope.factor, rope.mscale) / _yarn_scale(rope.factor, rope.mscale_all_dim)
    return _yarn_scale(rope.factor, 1.0)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2]; YaRN blends interpolated and plain frequencies over a ramp."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**steps)
    if rope.kind != "yarn":
        return plain

    def pair_of(rotations: float) -> float:
        span = rope.original_max_positions / (rotations * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_of(rope.beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.beta_slow)), head_dim - 1)
    width = max(high - low, 1e-3)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


class RotaryTable:
    """cos and sin for positions 0..limit-1, and the query temperature where it applies.

    Attributes:
        cos, sin: float32 [limit, head_dim], halves repeated.
        temperature: float32 [limit] or None when it is 1 for every position below the limit.
    """

    def __init__(self, rope: RopeConfig, head_dim: int, limit: int, device: torch.device) -> None:
        positions = torch.arange(limit, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
        scale = attention_factor(rope)
        self.cos = (torch.cat((angles, angles), -1).cos() * scale).to(device)
        self.sin = (torch.cat((angles, angles), -1).sin() * scale).to(device)
        # The sign of rotate_half lives in the table: x * cos + swap(x) * sin needs no negation.
        self.sin[:, : head_dim // 2].neg_()
        self.temperature: torch.Tensor | None = None
        if rope.query_beta and limit > rope.original_max_positions:
            steps = torch.floor(positions / rope.original_max_positions)
            self.temperature = (1 + rope.query_beta * torch.log1p(steps)).to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [T, heads, D] by cos, signed_sin [T, 1, D]."""
    half = x.shape[-1] // 2
    swapped = torch.roll(x, half, -1)
    return x * cos + swapped * signed_sin
