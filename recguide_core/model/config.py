"""Geometry and constants of an NLD checkpoint, read from its `config.json`.

Knows the published keys and their aliases; knows nothing of weights or files beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recguide_core.errors import DataError, UsageError

_VLM_HINTS = ("vlm", "vision")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding; `factor` 1 and `kind` "default" mean plain RoPE.

    Attributes:
        kind: "default" or "yarn".
        theta: base of the rotary frequencies.
        query_beta: llama-4 query scaling, q *= 1 + beta * ln(1 + floor(pos / original)); 0 = off.
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_positions: int = 16384
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0
    attention_factor: float | None = None
    query_beta: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of the transformer and its special token ids."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rms_eps: float
    max_positions: int
    block_size: int
    mask_id: int
    bos_id: int
    eos_ids: tuple[int, ...]
    tied: bool
    rope: RopeConfig

    @property
    def group(self) -> int:
        """Query heads per KV head (G)."""
        return self.heads // self.kv_heads

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize

    def digest(self) -> str:
        """Short hash of the geometry, carried by every table made with this model."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """Both spellings of the rope block: `rope_parameters` (5.x) and `rope_scaling` (4.x)."""
    block = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = str(block.get("rope_type", block.get("type", "default")))
    if kind not in ("default", "yarn"):
        raise DataError(
            f"config.json: rope_type '{kind}' is not one that NLD uses.",
            "Use a checkpoint with rope_type 'yarn' or 'default'.",
        )
    theta = block.get("rope_theta", raw.get("rope_theta", 10000.0))
    known = {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_positions",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
        "attention_factor": "attention_factor",
        "llama_4_scaling_beta": "query_beta",
    }
    values = {ours: block[key] for key, ours in known.items() if block.get(key) is not None}
    values.setdefault("original_max_positions", raw.get("max_position_embeddings", 16384))
    if kind == "yarn" and "factor" not in values:
        values["factor"] = raw["max_position_embeddings"] / values["original_max_positions"]
    if kind == "yarn":
        # Absent is not 1: without both of them the attention factor comes from `factor` alone.
        values = {"mscale": 0.0, "mscale_all_dim": 0.0} | values
    values["original_max_positions"] = int(values["original_max_positions"])
    return RopeConfig(kind=kind, theta=float(theta), **values)


def _need(raw: Mapping[str, Any], key: str) -> int:
    if not isinstance(raw.get(key), int) or isinstance(raw.get(key), bool):
        raise DataError(
            f"config.json: '{key}' is {'missing' if key not in raw else 'not a whole number'}.",
            "Take config.json as published with the checkpoint.",
        )
    return int(raw[key])


def config_from_dict(raw: Mapping[str, Any]) -> ModelConfig:
    """Build a config from the published keys.

    Raises:
        DataError: a key is missing or has an impossible value.
        UsageError: the checkpoint is the vision-language model, which is not supported.
    """
    kind = str(raw.get("model_type", ""))
    if any(hint in kind.lower() for hint in _VLM_HINTS) or "vision_config" in raw:
        raise UsageError(
            f"model_type '{kind}' is the vision-language model; RecGuide serves the text models.",
            "Use a Nemotron-Labs-Diffusion text checkpoint (3B, 8B or 14B).",
        )
    heads = _need(raw, "num_attention_heads")
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    hidden = _need(raw, "hidden_size")
    if heads % kv_heads:
        raise DataError(
            f"config.json: {heads} query heads do not divide over {kv_heads} KV heads.",
            "Take config.json as published with the checkpoint.",
        )
    eos = raw.get("eos_token_id", 11)
    config = ModelConfig(
        hidden=hidden,
        intermediate=_need(raw, "intermediate_size"),
        layers=_need(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(raw.get("head_dim") or hidden // heads),
        vocab=_need(raw, "vocab_size"),
        rms_eps=float(raw.get("rms_norm_eps", 1e-5)),
        max_positions=_need(raw, "max_position_embeddings"),
        block_size=int(raw.get("block_size", 32)),
        mask_id=int(raw.get("mask_token_id", 100)),
        bos_id=int(raw.get("bos_token_id", 1)),
        eos_ids=tuple(int(e) for e in (eos if isinstance(eos, list) else [eos])),
        tied=bool(raw.get("tie_word_embeddings", False)),
        rope=_rope(raw),
    )
    for name, token in [("mask_token_id", config.mask_id), *(("eos", e) for e in config.eos_ids)]:
        if not 0 <= token < config.vocab:
            raise DataError(
                f"config.json: {name} {token} lies outside the vocabulary of {config.vocab}.",
                "Take config.json as published with the checkpoint.",
            )
    return config


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` (and the eos ids of `generation_config.json`, which win) of a folder."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} holds no config.json.", "Name a folder with a published NLD checkpoint."
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not JSON: {error}.", "Download the file again.") from None
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
        if eos is not None:
            raw["eos_token_id"] = eos
    return config_from_dict(raw)
