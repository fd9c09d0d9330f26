"""Geometry of the published NLD sizes, without their files: profiles, floors, device checks."""

from __future__ import annotations

from recguide_core.errors import UsageError, nearest
from recguide_core.model.config import ModelConfig, config_from_dict

_SIZES = {
    "nld-3b": (3072, 9216, 26, 1e6),
    "nld-8b": (4096, 14336, 34, 1e6),
    "nld-14b": (5120, 16384, 40, 1e9),
}
"""hidden, intermediate, layers, rope theta."""


def published_config(name: str) -> ModelConfig:
    """Geometry of nld-3b, nld-8b or nld-14b, without their files (profiles, floors)."""
    if name not in _SIZES:
        raise UsageError(f"No published geometry named '{name}'.", nearest(name, _SIZES))
    hidden, wide, layers, theta = _SIZES[name]
    return config_from_dict(
        {
            "model_type": "nemotron_labs_diffusion",
            "hidden_size": hidden,
            "intermediate_size": wide,
            "num_hidden_layers": layers,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 131072,
            "max_position_embeddings": 262144,
            "mask_token_id": 100,
            "bos_token_id": 1,
            "eos_token_id": 11,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": theta,
                "factor": 16.0,
                "original_max_position_embeddings": 16384,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        }
    )
