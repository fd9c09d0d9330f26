"""Geometry and constants of an NLD checkpoint, read from its `config.json`.

Knows the published keys and their aliases; knows nothing of weights or files beside it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recguide_core.errors import DataError, UsageError
from recguide_core.model.json_files import read_object

_VLM_HINTS = ("vlm", "vision")
_AS_PUBLISHED = "Take config.json as published with the checkpoint."


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
    name = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    block = raw.get(name) or {}
    if not isinstance(block, Mapping):
        raise DataError(f"config.json: '{name}' is not an object.", _AS_PUBLISHED)
    kind = str(block.get("rope_type", block.get("type", "default")))
    if kind not in ("default", "yarn"):
        raise DataError(
            f"config.json: rope_type '{kind}' is not one that NLD uses.",
            "Use a checkpoint with rope_type 'yarn' or 'default'.",
        )
    theta = _number({"rope_theta": raw.get("rope_theta", 10000.0)} | dict(block), "rope_theta")
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
    values: dict[str, Any] = {
        ours: _number(block, key) for key, ours in known.items() if block.get(key) is not None
    }
    limit = _whole(raw, "max_position_embeddings")
    values["original_max_positions"] = int(values.get("original_max_positions", limit))
    if kind == "yarn" and "factor" not in values:
        values["factor"] = limit / values["original_max_positions"]
    if kind == "yarn":
        # Absent is not 1: without both of them the attention factor comes from `factor` alone.
        values = {"mscale": 0.0, "mscale_all_dim": 0.0} | values
    return RopeConfig(kind=kind, theta=theta, **values)


def _number(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"config.json: '{key}' is {value!r}, not a number.", _AS_PUBLISHED)
    return float(value)


def _whole(raw: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        fault = "missing" if value is None else f"{value!r}, not a whole number"
    elif value < least:
        fault = f"{value}, below {least}"
    else:
        return value
    raise DataError(f"config.json: '{key}' is {fault}.", _AS_PUBLISHED)


def _eos_ids(raw: Mapping[str, Any]) -> tuple[int, ...]:
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) and value else [11 if value is None else value]
    return tuple(_whole({"eos_token_id": one}, "eos_token_id", least=0) for one in ids)


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
    heads = _whole(raw, "num_attention_heads")
    kv_heads = _whole(raw, "num_key_value_heads", heads)
    hidden = _whole(raw, "hidden_size")
    config = ModelConfig(
        hidden=hidden,
        intermediate=_whole(raw, "intermediate_size"),
        layers=_whole(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_whole(raw, "head_dim", hidden // heads),
        vocab=_whole(raw, "vocab_size"),
        rms_eps=_number({"rms_norm_eps": 1e-5} | dict(raw), "rms_norm_eps"),
        max_positions=_whole(raw, "max_position_embeddings"),
        block_size=_whole(raw, "block_size", 32),
        mask_id=_whole(raw, "mask_token_id", 100, least=0),
        bos_id=_whole(raw, "bos_token_id", 1, least=0),
        eos_ids=_eos_ids(raw),
        tied=bool(raw.get("tie_word_embeddings", False)),
        rope=_rope(raw),
    )
    _check(config)
    return config


def _check(config: ModelConfig) -> None:
    """Faults that show only between keys."""
    if config.heads % config.kv_heads:
        raise DataError(
            f"config.json: {config.heads} query heads do not divide over {config.kv_heads} "
            "KV heads.",
            _AS_PUBLISHED,
        )
    if config.head_dim % 2:
        raise DataError(
            f"config.json: head_dim {config.head_dim} is odd; rotary pairs need an even one.",
            _AS_PUBLISHED,
        )
    named = [("mask_token_id", config.mask_id), *(("eos_token_id", e) for e in config.eos_ids)]
    for name, token in named:
        if token >= config.vocab:
            raise DataError(
                f"config.json: {name} {token} lies outside the vocabulary of {config.vocab}.",
                _AS_PUBLISHED,
            )


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` (and the eos ids of `generation_config.json`, which win) of a folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise DataError(
            f"{folder} holds no config.json.", "Name a folder with a published NLD checkpoint."
        )
    raw = read_object(path)
    generation = folder / "generation_config.json"
    if generation.is_file():
        eos = read_object(generation).get("eos_token_id")
        if eos is not None:
            raw["eos_token_id"] = eos
    return config_from_dict(raw)
