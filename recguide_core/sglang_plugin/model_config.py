"""The checkpoint's `model_type` for transformers, so that no remote code has to be trusted.

Imports transformers, so only modules that run inside SGLang import this one.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

MODEL_TYPE = "nemotron_labs_diffusion"
ARCHITECTURE = "NemotronLabsDiffusionModel"


class NemotronLabsDiffusionConfig(PretrainedConfig):  # type: ignore[misc,no-untyped-call,unused-ignore]
    """Geometry and ids of an NLD checkpoint; `model.config` gives them meaning."""

    model_type = MODEL_TYPE

    def __init__(self, **values: Any) -> None:
        # transformers 5 checks rope_parameters against these while the base class is built.
        for name in ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings"):
            if name in values:
                setattr(self, name, values[name])
        super().__init__(**values)
