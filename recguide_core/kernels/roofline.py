"""Floors of a forward: bytes, FLOPs and the least time per part, for any shape. Arithmetic only.

A part cannot take less than its compulsory bytes over the bandwidth, nor less than its FLOPs over
the peak. Weights are read once a forward, a request's prefix once for all its rows; activations
stay on chip. Peaks are achievable ones where somebody measured them, else assumed, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recguide_core.errors import UsageError, nearest


class ModelShape(Protocol):
    """The geometry that floors need (`model.config.ModelConfig` has it)."""

    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of a device: bytes/s, bf16 FLOP/s; `source` says whether measured or assumed."""

    name: str
    bandwidth: float
    flops: float
    source: str


GPUS = {
    "h200": Gpu("H200", 4.3e12, 0.785e15, "copy and bf16 GEMM reported for one card"),
    "b200": Gpu("B200", 7.0e12, 1.6e15, "assumed, not measured"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A forward.

    Attributes:
        requests: C; tokens: query tokens a request in its main row (1 = AR, B = draft or verify).
        context: committed tokens P a request (mean).
        branches: branch rows a request, each of `tokens` query tokens.
        draft: the main row is a draft row (adapter on).
    """

    requests: int
    tokens: int
    context: int
    branches: int = 0
    draft: bool = False

    @property
    def adapter_tokens(self) -> int:
        """Query tokens with the draft adapter."""
        return self.requests * self.tokens * (self.branches + self.draft)

    @property
    def query_tokens(self) -> int:
        """Packed tokens of the forward: a branch costs B tokens, not p + B."""
        return self.requests * self.tokens * (1 + self.branches)


@dataclass(frozen=True, slots=True)
class Floor:
    """One part of a forward: compulsory bytes, FLOPs, and the times that either needs at least.

    `ms` is the larger of `bytes_ms` and `flops_ms`; for the sum over parts, the sum of those.
    """

    part: str
    bytes: float
    flops: float
    bytes_ms: float
    flops_ms: float
    ms: float

    @property
    def bound(self) -> str:
        """What limits the part: bytes or FLOPs."""
        return "bytes" if self.bytes_ms >= self.flops_ms else "FLOPs"


def gpu(name: str) -> Gpu:
    """Peaks by name.

    Raises:
        UsageError: unknown, with the nearest known one.
    """
    found = GPUS.get(name.lower())
    if found is None:
        raise UsageError(f"No peaks are known for a GPU named '{name}'.", nearest(name, GPUS))
    return found


def _floor(part: str, gpu: Gpu, size: float, work: float) -> Floor:
    by_bytes, by_flops = size / gpu.bandwidth * 1e3, work / gpu.flops * 1e3
    return Floor(part, size, work, by_bytes, by_flops, max(by_bytes, by_flops))


def layer_weights(model: ModelShape) -> int:
    """Parameters of one block's projections."""
    attention = (2 * model.heads + 2 * model.kv_heads) * model.head_dim * model.hidden
    return attention + 3 * model.hidden * model.intermediate


def forward_floor(model: ModelShape, shape: Shape, gpu: Gpu, *, rank: int = 128) -> list[Floor]:
    """Floors of the parts of one forward, the sum of them last.

    The sum adds the parts' floors, which is the floor of kernels that run one after another.

    Args:
        rank: of the draft adapter on `o_proj`; counted for draft and branch tokens.
    """
    n, T, element = shape.requests, shape.query_tokens, 2
    L, D = model.layers, model.head_dim
    blocks = layer_weights(model) * L
    kv_row = 2 * model.kv_heads * D * element
    scores = 4 * T * model.heads * D
    low = rank * (model.heads * D + model.hidden) * L if shape.adapter_tokens else 0
    own = shape.tokens
    # A causal row sees half of itself on average, a branch its parent's part and all of itself.
    seen = own / 2 + shape.branches * own * 1.5
    in_flight = 4 * n * own * seen * model.heads * D
    parts = [
        _floor("projections", gpu, blocks * element, 2.0 * blocks * T),
        _floor("prefix attention", gpu, float(n * shape.context * kv_row * L),
               float(scores * shape.context * L)),
        _floor("in-flight attention", gpu, float(n * own * kv_row * L), float(in_flight * L)),
        _floor("draft adapter", gpu, low * element,
               2.0 * low * shape.adapter_tokens),
        _floor("head", gpu, model.vocab * model.hidden * element,
               2.0 * model.vocab * model.hidden * T),
        _floor("read-out", gpu, T * model.vocab * 4.0, 0.0),
    ]  # fmt: skip
    total = Floor(
        "forward", sum(p.bytes for p in parts), sum(p.flops for p in parts),
        sum(p.bytes_ms for p in parts), sum(p.flops_ms for p in parts), sum(p.ms for p in parts),
    )  # fmt: skip
    return [*parts, total]


def ridge_tokens(model: ModelShape, gpu: Gpu) -> float:
    """Query tokens a forward at which the weights' bytes and FLOPs take the same time."""
    weights = layer_weights(model) * model.layers + model.vocab * model.hidden
    return (weights * 2 / gpu.bandwidth) / (2 * weights / gpu.flops)
