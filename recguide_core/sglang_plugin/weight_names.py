"""From a tensor's published name to the fused parameter that takes it. Pure strings."""

from __future__ import annotations

from dataclasses import dataclass

_FUSED: dict[str, tuple[str, str | int]] = {
    "self_attn.q_proj": ("self_attn.qkv_proj", "q"),
    "self_attn.k_proj": ("self_attn.qkv_proj", "k"),
    "self_attn.v_proj": ("self_attn.qkv_proj", "v"),
    "mlp.gate_proj": ("mlp.gate_up_proj", 0),
    "mlp.up_proj": ("mlp.gate_up_proj", 1),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Parameter of the SGLang module and, for fused ones, which shard of it."""

    parameter: str
    shard: str | int | None


def place_of(name: str) -> Place:
    """Where the tensor `name` goes; names of no fused part keep their own."""
    stem, _, kind = name.rpartition(".")
    for part, (fused, shard) in _FUSED.items():
        if stem.endswith("." + part):
            return Place(f"{stem[: -len(part)]}{fused}.{kind}", shard)
    return Place(name, None)


def parts_of(parameter: str) -> list[tuple[str, str | int | None]]:
    """(parameter, shard) of every tensor that a parameter is made of."""
    shards = [shard for fused, shard in _FUSED.values() if parameter.endswith(f".{fused}.weight")]
    return [(parameter, shard) for shard in shards] or [(parameter, None)]
