"""The least time that a step could take: what it must read, and what it must compute.

Weights are read once a forward, each request's committed K/V once for all its rows. Every query
token goes through the blocks, every emitted token through the head, every request's prefix meets at
least one query. Activations, written K/V, the draft adapter and attention of further queries are
left out, so the true least time is longer. Peaks are measured on a CPU (peaks.py) and the makers'
on a GPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recguide_core.policy.devices import ModelSize


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device can do: bytes/s of weights, floating-point operations/s, and who says so."""

    device: str
    bandwidth: float
    flops: float
    source: str

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StepMeans:
    """A mean step: packed query tokens, committed tokens read, tokens emitted, and its time."""

    query_tokens: float
    kv_tokens: float
    emitted: float
    ms: float


def floor_of(size: ModelSize, element: int, step: StepMeans, peaks: Peaks) -> dict[str, Any]:
    """The floor of a mean step.

    Args:
        size: of the model, its bytes counted at two a number; element: bytes of a number in use.

    Returns:
        bytes, flops; `bytes_ms`, `flops_ms` and their maximum `ms`; `bound` (bytes or FLOPs);
        `achieved`: floor over measured time, 1 = as fast as the device can.
    """
    scale = element / 2
    size_bytes = scale * (size.weight_bytes + step.kv_tokens * size.kv_bytes)
    # Two bytes a number, two operations a number and token: the same figure.
    head = size.head_bytes
    work = (
        (size.token_flops - head) * step.query_tokens
        + head * step.emitted
        + size.pair_flops * step.kv_tokens
    )
    by_bytes, by_flops = 1e3 * size_bytes / peaks.bandwidth, 1e3 * work / peaks.flops
    least = max(by_bytes, by_flops)
    return {
        "bytes": size_bytes,
        "flops": work,
        "bytes_ms": by_bytes,
        "flops_ms": by_flops,
        "ms": least,
        "bound": "bytes" if by_bytes >= by_flops else "FLOPs",
        "achieved": least / step.ms,
    }
