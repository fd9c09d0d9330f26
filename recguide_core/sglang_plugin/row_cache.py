"""SGLang's KV pool as packed rows see it: buffers, the row table, and who lies in which row.

The row table `req_to_token` gives the KV slot of (row, position). Positions [0, P) of a request
are committed; a commit row writes behind them, into slots that SGLang has reserved; nothing else
is written, so a rejected token costs no clean-up: P does not move over it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from recguide_core.engine.rows import PackedStep
from recguide_core.records import IntArray


@dataclass(slots=True)
class RowCache:
    """Buffers and bindings.

    Attributes:
        table: slot of (row, position), int32 [rows, width], contiguous.
        k, v: one tensor a layer, [slots, Hkv, D].
        row: row of each request slot of the driver, int64 [N].
    """

    table: torch.Tensor
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    row: IntArray

    def bind(self, slot: int, row: int) -> None:
        """Say that the request in a driver slot lies in a row of the table."""
        self.row[slot] = row

    @property
    def device(self) -> torch.device:
        return self.table.device

    def rows_of(self, step: PackedStep) -> IntArray:
        """Row of each request of a step, int64 [R]."""
        return np.asarray(self.row[step.slots])

    def row_offsets(self, step: PackedStep) -> IntArray:
        """Start of each request's row in the flattened table, int64 [R].

        The table itself is a page table of page size 1, so kernels read it where it lies.
        """
        return np.asarray(self.rows_of(step) * self.table.shape[1])


@dataclass(frozen=True, slots=True)
class Writes:
    """K/V that a step commits.

    Attributes:
        token: packed index of each token written, int64 [W].
        at: its place in the flattened row table, int64 [W]; request: which request, int64 [W].
    """

    token: IntArray
    at: IntArray
    request: IntArray


def writes_of(cache: RowCache, step: PackedStep) -> Writes:
    """The tokens of commit rows and where their K/V go."""
    committing = np.repeat(step.rows.commit, step.rows.length)
    token = np.flatnonzero(committing)
    request = np.searchsorted(step.offset, token, side="right") - 1
    position = step.positions[token]
    at = cache.row_offsets(step)[request] + position
    assert (position < cache.table.shape[1]).all(), "a row reaches past its line of the row table"
    return Writes(token, at, request)
