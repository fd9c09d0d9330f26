"""Who samples in a device-resident round, and with which noise. Graph-safe: no host read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recguide_core.errors import UsageError
from recguide_core.kernels.round_state import PackedRows, RoundState, RowNoise
from recguide_core.kernels.sampling_torch import noise_table, position_key, seed_key
from recguide_core.records import Sampling

_MASK32 = 0xFFFFFFFF


class NoiseSource:
    """Makes `RowNoise` of packed rows; owns the table, 32 MiB on the device."""

    def __init__(self, device: torch.device) -> None:
        self._table = noise_table().to(device)

    def of(self, rows: PackedRows, state: RoundState) -> RowNoise:
        """Of every packed token; a causal one predicts the next position, a drafted one its own."""
        mine = rows.request.clamp_min(0).long()
        heat = torch.where(rows.request >= 0, state.temperature[mine], 0.0)
        return self._made(heat, state.noise_key[mine], rows.pos + rows.commit)

    def at(self, state: RoundState, positions: torch.Tensor) -> RowNoise:
        """Of one token of each request, which predicts `positions` int32 [N]."""
        return self._made(state.temperature, state.noise_key, positions)

    def _made(self, heat: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> RowNoise:
        key = position_key(keys.long() & _MASK32, positions.long())
        return RowNoise(heat, _as_int32(key), self._table)


def why_not(sampling: Sampling) -> str | None:
    """Reason why a request cannot sample on the device; None when it can.

    Filters need a sorted vocabulary and bias its own logits: the engine reads such rows out again
    beside the graph (`engine.wishes`).
    """
    if sampling.logit_bias:
        return "logit bias"
    if not sampling.greedy and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0):
        return "top-k, top-p or min-p"
    return None


def set_sampling(state: RoundState, settings: Sequence[Sampling]) -> None:
    """Write temperature and noise key of every slot.

    Raises:
        UsageError: a request samples in a way that the device does not.
    """
    for one in settings:
        reason = why_not(one)
        if reason is not None:
            raise UsageError(
                f"Device-resident rounds cannot serve {reason}.",
                "Run such requests through the engine, which reads their rows out again.",
            )
    device = state.temperature.device
    heat = torch.tensor([s.temperature for s in settings], dtype=torch.float32)
    keys = _as_int32(seed_key(torch.tensor([s.seed for s in settings], dtype=torch.int64)))
    state.temperature.copy_(heat.to(device))
    state.noise_key.copy_(keys.to(device))


def _as_int32(bits: torch.Tensor) -> torch.Tensor:
    """The same 32 bits: int64 in [0, 2^32) -> int32."""
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).int()
