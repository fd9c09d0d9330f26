"""The draft adapter of nld-tiny: low-rank updates of `o_proj`, on in the noised stream only.

Published layout (Nemotron-Labs-Diffusion `linear_spec_lora`): lora_A [rank, heads * head_dim],
lora_B [hidden, rank], scale = alpha / rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recguide_core.tiny.network import Attention, Layer, TinyModel


class AdaptedAttention(Attention):
    """Attention whose output projection adds the adapter from column `first` on."""

    first: int = 0

    def adopt(self, base: Attention, rank: int, alpha: float) -> None:
        """Take over the projections of `base` and add a zero adapter."""
        self.q_proj, self.k_proj = base.q_proj, base.k_proj
        self.v_proj, self.o_proj = base.v_proj, base.o_proj
        width = base.o_proj.in_features
        self.lora_A = nn.Parameter(torch.randn(rank, width) / width**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.o_proj.out_features, rank))
        self.scale = alpha / rank

    def output(self, heads: Tensor) -> Tensor:
        """As `Attention.output`, plus the adapter for tokens at and after column `first`."""
        merged = heads.transpose(1, 2).flatten(2)
        projected: Tensor = self.o_proj(merged)
        extra = F.linear(F.linear(merged[:, self.first :], self.lora_A), self.lora_B) * self.scale
        return torch.cat([projected[:, : self.first], projected[:, self.first :] + extra], dim=1)


def add_adapter(model: TinyModel, rank: int, alpha: float) -> list[AdaptedAttention]:
    """Freeze `model` and give every layer a trainable adapter; return the adapted modules.

    The clean stream keeps the adapter off because every dual forward sets `first` to its length.
    """
    for weight in model.parameters():
        weight.requires_grad_(False)
    adapted = []
    for layer in model.encoder.layers:
        assert isinstance(layer, Layer)
        module = AdaptedAttention(model.shape)
        module.adopt(layer.self_attn, rank, alpha)
        layer.self_attn = module
        adapted.append(module)
    return adapted


def switch_adapter(model: TinyModel, first: int) -> None:
    """Turn the adapter on from column `first` of the next forwards (0: everywhere)."""
    for layer in model.encoder.layers:
        assert isinstance(layer, Layer)
        if isinstance(layer.self_attn, AdaptedAttention):
            layer.self_attn.first = first
