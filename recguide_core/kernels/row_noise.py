"""Who samples in a device-resident round, and with which noise. Graph-safe: no host read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recguide_core.errors import UsageError
from recguide_core.kernels.round_state import PackedRows, RoundState
from recguide_core.kernels.sampled_rows import FilteredRows, RowNoise
from recguide_core.kernels.sampling_torch import noise_table, position_key, seed_key
from recguide_core.records import Sampling

_MASK32 = 0xFFFFFFFF


class NoiseSource:
    """Makes `RowNoise` of packed rows; owns the table, 32 MiB on the device."""

    def __init__(self, device: torch.device) -> None:
        self._table = noise_table().to(device)

    def of(self, rows: PackedRows, state: RoundState, filtered: int = 0) -> RowNoise:
        """Of every packed token; a causal one predicts the next position, a drafted one its own.

        Args:
            filtered: most tokens of requests with top-k, top-p or min-p; 0 = nobody has them.
        """
        mine = rows.request.clamp_min(0).long()
        heat = torch.where(rows.request >= 0, state.temperature[mine], 0.0)
        return self._made(state, mine, heat, rows.pos + rows.commit, filtered)

    def at(self, state: RoundState, positions: torch.Tensor, filtered: int = 0) -> RowNoise:
        """Of one token of each request, which predicts `positions` int32 [N]."""
        mine = torch.arange(len(positions), device=positions.device)
        return self._made(state, mine, state.temperature, positions, filtered)

    def _made(
        self,
        state: RoundState,
        mine: torch.Tensor,
        heat: torch.Tensor,
        positions: torch.Tensor,
        filtered: int,
    ) -> RowNoise:
        key = position_key(state.noise_key[mine].long() & _MASK32, positions.long())
        chosen = None
        if filtered:
            top_k, top_p, min_p = state.top_k[mine].long(), state.top_p[mine], state.min_p[mine]
            use = (heat > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))
            # The tokens that filter first, whoever they are: a sort has a fixed size.
            index = torch.sort(use.int(), descending=True, stable=True).indices[:filtered]
            columns = (use, heat, key, top_k, top_p, min_p)
            chosen = FilteredRows(index, *(column[index] for column in columns))
        return RowNoise(heat, _as_int32(key), self._table, chosen)


def filters(sampling: Sampling) -> bool:
    """Whether a request needs the sorted vocabulary."""
    cuts = sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0
    return not sampling.greedy and cuts


def why_not(sampling: Sampling) -> str | None:
    """Reason why a request cannot be read out on the device; None when it can.

    Biased logits are the request's own: the engine reads such rows out again beside the graph
    (`engine.wishes`).
    """
    return "logit bias" if sampling.logit_bias else None


def columns(settings: Sequence[Sampling]) -> dict[str, torch.Tensor]:
    """Fields of `RoundState` that say how requests sample, CPU tensors [n]."""
    seeds = torch.tensor([s.seed for s in settings], dtype=torch.int64)
    return {
        "temperature": torch.tensor([s.temperature for s in settings], dtype=torch.float32),
        "noise_key": _as_int32(seed_key(seeds)),
        "top_k": torch.tensor([s.top_k for s in settings], dtype=torch.int32),
        "top_p": torch.tensor([s.top_p for s in settings], dtype=torch.float32),
        "min_p": torch.tensor([s.min_p for s in settings], dtype=torch.float32),
    }


def set_sampling(state: RoundState, settings: Sequence[Sampling]) -> None:
    """Write how every slot samples.

    Raises:
        UsageError: a request wants what the device does not do.
    """
    for one in settings:
        reason = why_not(one)
        if reason is not None:
            raise UsageError(
                f"Device-resident rounds cannot serve {reason}.",
                "Run such requests through the engine, which reads their rows out again.",
            )
    for name, column in columns(settings).items():
        getattr(state, name).copy_(column)


def any_filter(state: RoundState) -> bool:
    """Whether some slot has top-k, top-p or min-p; reads the state back to the host."""
    cuts = (state.top_k > 0) | (state.top_p < 1) | (state.min_p > 0)
    return bool((cuts & (state.temperature > 0)).any())


def _as_int32(bits: torch.Tensor) -> torch.Tensor:
    """The same 32 bits: int64 in [0, 2^32) -> int32."""
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).int()
