"""Random weights of a geometry on the device: right cost, meaningless text."""

from __future__ import annotations

import torch

from recguide_core.kernels.device_forward import Pools
from recguide_core.model.config import ModelConfig, config_from_dict
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.published import published_config
from recguide_core.model.transformer import LayerWeights, Transformer, Weights

RANK = 128
TINY_RANK = 16
MAX_POSITIONS = 16384


def config_for(tiny: bool) -> ModelConfig:
    """NLD-8B, or a miniature with nld-tiny's head shape."""
    if not tiny:
        return published_config("nld-8b")
    return config_from_dict(
        {
            "model_type": "nemotron_labs_diffusion", "hidden_size": 128, "intermediate_size": 128,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 64, "vocab_size": 160, "max_position_embeddings": 256, "mask_token_id": 3,
            "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {"rope_theta": 10000.0},
        }
    )  # fmt: skip


def random_transformer(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, rank: int
) -> Transformer:
    """Weights drawn on the device, scaled so that activations stay of order one."""
    g = torch.Generator(device=device).manual_seed(0)
    h, width = config.hidden, config.heads * config.head_dim
    qkv = (config.heads + 2 * config.kv_heads) * config.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        made = torch.empty((rows, columns), device=device, dtype=dtype)
        return made.normal_(0, columns**-0.5, generator=g)

    def layer() -> LayerWeights:
        ones = torch.ones(h, device=device, dtype=dtype)
        return LayerWeights(
            ones, matrix(qkv, h), matrix(h, width), ones, matrix(2 * config.intermediate, h),
            matrix(h, config.intermediate),
        )  # fmt: skip

    layers = [layer() for _ in range(config.layers)]
    ones = torch.ones(h, device=device, dtype=dtype)
    weights = Weights(matrix(config.vocab, h), layers, ones, matrix(config.vocab, h))
    adapter = DraftAdapter(
        [matrix(rank, width) for _ in range(config.layers)],
        [matrix(h, rank) for _ in range(config.layers)],
    )
    positions = min(config.max_positions, MAX_POSITIONS)
    return Transformer(config, weights, adapter, positions)


def random_pools(
    config: ModelConfig, slots: int, device: torch.device, dtype: torch.dtype
) -> Pools:
    """K/V of order one in every slot."""
    g = torch.Generator(device=device).manual_seed(1)
    shape = (slots, config.kv_heads, config.head_dim)

    def blank() -> list[torch.Tensor]:
        return [
            torch.empty(shape, device=device, dtype=dtype).normal_(generator=g)
            for _ in range(config.layers)
        ]

    return Pools(blank(), blank())
