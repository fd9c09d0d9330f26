"""Published peaks of GPUs and sizes of the NLD models: the physics behind a modelled forward.

Peaks are the makers' figures for dense bf16 with fp32 accumulation and for memory bandwidth, not
measurements. Model sizes follow from the published configurations: parameters read once per
forward (embedding rows excluded, output head included), two bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass

from recguide_core.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one GPU.

    Attributes:
        bandwidth: bytes per second of device memory.
        flops: dense bf16 floating-point operations per second.
    """

    name: str
    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a forward of a dense decoder must move and compute.

    Attributes:
        weight_bytes: read once per forward, `head_bytes` of them by the output head.
        token_flops: of the matrix products, per query token.
        kv_bytes: of one cached token.
        pair_flops: of attention, per query token and key.
    """

    name: str
    layers: int
    weight_bytes: float
    head_bytes: float
    token_flops: float
    kv_bytes: float
    pair_flops: float

    @classmethod
    def dense(
        cls, name: str, layers: int, hidden: int, mlp: int, q_out: int, kv_out: int, vocab: int
    ) -> ModelSize:
        """From the sizes of a Llama-like configuration; `q_out` = heads x head_dim."""
        per_layer = 2 * hidden * q_out + 2 * hidden * kv_out + 3 * hidden * mlp
        read = layers * per_layer + hidden * vocab
        return cls(
            name=name,
            layers=layers,
            weight_bytes=2.0 * read,
            head_bytes=2.0 * hidden * vocab,
            token_flops=2.0 * read,
            kv_bytes=4.0 * layers * kv_out,
            pair_flops=4.0 * layers * q_out,
        )


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h100", 3.35e12, 989e12),
        Gpu("h200", 4.8e12, 989e12),
        Gpu("b200", 7.67e12, 2250e12),
        Gpu("gb200", 8.0e12, 2500e12),
        Gpu("l40s", 0.864e12, 362e12),
        Gpu("rtx-4090", 1.008e12, 165e12),
    )
}

MODELS = {
    size.name: size
    for size in (
        ModelSize.dense("nld-3b", 26, 3072, 9216, 4096, 1024, 131072),
        ModelSize.dense("nld-8b", 34, 4096, 14336, 4096, 1024, 131072),
        ModelSize.dense("nld-14b", 40, 5120, 16384, 4096, 1024, 131072),
    )
}


def gpu(name: str) -> Gpu:
    """The GPU of that name.

    Raises:
        UsageError: unknown; the remedy lists the known.
    """
    if name not in GPUS:
        raise UsageError(f"No GPU '{name}'.", nearest(name, GPUS))
    return GPUS[name]


def model_size(name: str) -> ModelSize:
    """The model of that name.

    Raises:
        UsageError: unknown; the remedy lists the known.
    """
    if name not in MODELS:
        raise UsageError(f"No sizes for model '{name}'.", nearest(name, MODELS))
    return MODELS[name]
