"""Reads a checkpoint in the published layout: single or sharded safetensors plus the adapter.

Tensor names: `encoder.embed_tokens`, `encoder.layers.{i}.*`, `encoder.norm`, `diffusion_head`;
the adapter lies in `linear_spec_lora/` in PEFT form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from recguide_core.errors import DataError
from recguide_core.model.config import ModelConfig
from recguide_core.model.json_files import read_object
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.products import laid_out
from recguide_core.model.transformer import LayerWeights, Weights

ADAPTER_FOLDER = "linear_spec_lora"
_REMEDY = "Download the checkpoint again; `recguide doctor --model PATH` lists every fault."


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Published name -> shape of every tensor of a checkpoint without tied head."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.embed_tokens.weight": (config.vocab, hidden),
        "encoder.norm.weight": (hidden,),
        "diffusion_head.weight": (config.vocab, hidden),
    }
    for i in range(config.layers):
        base = f"encoder.layers.{i}."
        shapes |= {
            base + "input_layernorm.weight": (hidden,),
            base + "self_attn.q_proj.weight": (q, hidden),
            base + "self_attn.k_proj.weight": (kv, hidden),
            base + "self_attn.v_proj.weight": (kv, hidden),
            base + "self_attn.o_proj.weight": (hidden, q),
            base + "post_attention_layernorm.weight": (hidden,),
            base + "mlp.gate_proj.weight": (wide, hidden),
            base + "mlp.up_proj.weight": (wide, hidden),
            base + "mlp.down_proj.weight": (hidden, wide),
        }
    if config.tied:
        del shapes["diffusion_head.weight"]
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, from the index when it is sharded."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        where = read_object(index).get("weight_map")
        if not isinstance(where, dict) or not where:
            raise DataError(f"{index} holds no weight_map.", _REMEDY)
        names = sorted(set(where.values()))
    else:
        names = ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {missing[0]}.", _REMEDY)
    return [folder / name for name in names]


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if not path.is_file():
        raise DataError(f"{path.parent} lacks {path.name}.", _REMEDY)
    try:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise DataError(f"{path} is not a readable safetensors file: {error}.", _REMEDY) from None


def read_tensors(
    folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """All tensors by published name, checked against the geometry.

    Raises:
        DataError: a tensor is missing or has another shape than the config implies.
    """
    expected = tensor_shapes(config)
    found: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        for name, tensor in _tensors(path):
            if name in expected:
                if tuple(tensor.shape) != expected[name]:
                    raise DataError(
                        f"{path}: {name} has shape {tuple(tensor.shape)}, config.json implies "
                        f"{expected[name]}.",
                        "Use the config.json that belongs to these weights.",
                    )
                found[name] = tensor.to(device=device, dtype=dtype)
    # Some exports leave the head out and mean the embedding.
    if "diffusion_head.weight" in expected and "diffusion_head.weight" not in found:
        expected.pop("diffusion_head.weight")
    missing = sorted(set(expected) - set(found))
    if missing:
        raise DataError(f"{folder}: {len(missing)} tensors missing, first {missing[0]}.", _REMEDY)
    return found


def fuse(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> Weights:
    """Fuse q, k, v and gate, up into single matrices (fewer, larger GEMMs)."""

    def layer(i: int) -> LayerWeights:
        base = f"encoder.layers.{i}."

        def take(*names: str) -> torch.Tensor:
            parts = [tensors[base + name + ".weight"] for name in names]
            return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

        return LayerWeights(
            attn_norm=take("input_layernorm"),
            qkv=laid_out(take("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            o=laid_out(take("self_attn.o_proj")),
            mlp_norm=take("post_attention_layernorm"),
            gate_up=laid_out(take("mlp.gate_proj", "mlp.up_proj")),
            down=take("mlp.down_proj"),
        )

    embed = tensors["encoder.embed_tokens.weight"]
    own_head = tensors.get("diffusion_head.weight")
    return Weights(
        embed=embed,
        layers=[layer(i) for i in range(config.layers)],
        norm=tensors["encoder.norm.weight"],
        head=embed if own_head is None else laid_out(own_head),
    )


def read_adapter(
    folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> DraftAdapter | None:
    """The draft adapter of a checkpoint, or None when it ships none.

    Raises:
        DataError: the adapter targets other modules, or tensors are missing or misshapen.
    """
    home = folder / ADAPTER_FOLDER
    if not (home / "adapter_config.json").is_file():
        return None
    rank, scale = _adapter_settings(home / "adapter_config.json")
    found = dict(_tensors(home / "adapter_model.safetensors"))
    down, up = [], []
    for i in range(config.layers):
        base = f"base_model.model.encoder.layers.{i}.self_attn.o_proj."
        shapes = {
            "lora_A.weight": (rank, config.heads * config.head_dim),
            "lora_B.weight": (config.hidden, rank),
        }
        for name, shape in shapes.items():
            tensor = found.get(base + name)
            if tensor is None or tuple(tensor.shape) != shape:
                raise DataError(f"{home}: {base}{name} is missing or not {shape}.", _REMEDY)
        down.append(found[base + "lora_A.weight"].to(device=device, dtype=dtype))
        up.append((found[base + "lora_B.weight"].float() * scale).to(device=device, dtype=dtype))
    return DraftAdapter(down, up)


def _adapter_settings(path: Path) -> tuple[int, float]:
    """Rank r and scale alpha / r."""
    settings = read_object(path)
    targets = settings.get("target_modules")
    if targets not in (["o_proj"], "o_proj"):
        raise DataError(
            f"{path}: the adapter targets {targets}, not o_proj alone.",
            "Use the linear_spec_lora folder published with the checkpoint.",
        )
    for key in ("r", "lora_alpha"):
        value = settings.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise DataError(f"{path}: '{key}' is {value!r}, not a positive number.", _REMEDY)
    rank = int(settings["r"])
    return rank, float(settings["lora_alpha"]) / rank


def content_hash(folder: Path) -> str:
    """Short hash of config, weights and adapter files; tables name the model by it.

    Files over 64 MB are hashed by size, head and tail: a checkpoint of 27 GB must not be read
    twice at start-up.
    """
    digest = hashlib.sha256()
    files = [folder / "config.json", *weight_files(folder)]
    files += sorted((folder / ADAPTER_FOLDER).glob("adapter_*"))
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            if size <= 64 << 20:
                digest.update(file.read())
            else:
                digest.update(file.read(4 << 20))
                file.seek(-(4 << 20), 2)
                digest.update(file.read())
    return digest.hexdigest()[:16]


def random_tensors(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype, scale: float = 0.02
) -> dict[str, torch.Tensor]:
    """Random weights in the published names, for profiling a geometry without its checkpoint."""
    generator = torch.Generator(device=device).manual_seed(seed)
    out = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 1:
            out[name] = torch.ones(shape, device=device, dtype=dtype)
        else:
            noise = torch.randn(shape, generator=generator, device=device, dtype=dtype)
            out[name] = noise.mul_(scale)
    return out
