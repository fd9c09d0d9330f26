"""How the packed tokens of a round are sampled: noise for all of them, filters for some."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """Packed tokens to be read once more, with top-k, top-p and min-p: F places.

    Attributes:
        index: the tokens, those that filter first, int64 [F]; use: whether one filters, bool [F].
        heat: fp32 [F]; key: `sampling_torch.position_key`, int64 [F].
        top_k: int64 [F]; top_p, min_p: fp32 [F].
    """

    index: torch.Tensor
    use: torch.Tensor
    heat: torch.Tensor
    key: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


@dataclass(frozen=True, slots=True)
class RowNoise:
    """How each packed token is sampled; without it all are greedy.

    Attributes:
        heat: temperature T of the token's request, 0 = greedy, fp32 [T].
        key: bits of `sampling_torch.position_key` for the position that it predicts, int32 [T].
        table: `sampling_torch.noise_table` on the device, fp32 [2^23].
        filtered: tokens whose requests filter, None when there can be none.
    """

    heat: torch.Tensor
    key: torch.Tensor
    table: torch.Tensor
    filtered: FilteredRows | None = None

    def rows(self, lo: int, hi: int) -> RowNoise:
        return RowNoise(self.heat[lo:hi], self.key[lo:hi], self.table)
