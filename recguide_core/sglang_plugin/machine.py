"""The served model as a `Machine`: packed rows over SGLang's KV pool, before any request is there.

At start-up the pool belongs to nobody, so probes lay their own lines into the row table and take
the slots behind the padding in order. Only rows that commit take slots; branches need none.
"""

from __future__ import annotations

import torch

from recguide_core.engine.machine import Places
from recguide_core.engine.readings import Executor
from recguide_core.errors import CapacityError
from recguide_core.model.config import ModelConfig
from recguide_core.records import MAX_BLOCK
from recguide_core.sglang_plugin.row_cache import RowCache

FIRST_ROW = 1
"""SGLang keeps row 0 of the table for padded batches."""
FIRST_SLOT = 1
"""SGLang keeps slot 0 of the pool for padding."""


class OwnLines:
    """Places whose lines were laid out once: nothing is ever reserved or given back."""

    def reserve(self, request: int, tokens: int, expected: int = 0) -> bool:
        """There is room: `ServedMachine.open` made sure of it."""
        del request, tokens, expected
        return True

    def begin(self, request: int, in_flight: int) -> None:
        """Slots are known from the row table."""

    def commit(self, request: int, tokens: int) -> None:
        """The caller keeps the committed lengths."""

    def release(self, request: int) -> None:
        """What lies behind a committed length is never read."""


class ServedMachine:
    """A model inside SGLang, with its executor and the pool that it runs over."""

    def __init__(
        self, executor: Executor, cache: RowCache, config: ModelConfig, context: int
    ) -> None:
        self.executor, self.cache, self.config = executor, cache, config
        self.eos_ids = frozenset(config.eos_ids)
        self.context = context
        self.device: torch.device = cache.device

    def open(self, requests: int, tokens: int, in_flight: int) -> tuple[Places, Executor]:
        """Lay out `requests` lines.

        Raises:
            CapacityError: the pool or the row table is too small for them.
        """
        table = self.cache.table
        slots = len(self.cache.k[0]) - FIRST_SLOT
        most = min(slots // requests, table.shape[1])
        needed = tokens_of_line(tokens, in_flight, self.context)
        if requests > len(table) - FIRST_ROW or needed > most:
            raise CapacityError(
                f"SGLang's pool of {slots} tokens in {len(table) - FIRST_ROW} rows does not hold "
                f"{requests} requests of {needed} tokens.",
                "Probe fewer requests or shorter contexts, or free memory on the device.",
            )
        lines = torch.arange(requests * most, dtype=table.dtype, device=table.device)
        table[FIRST_ROW : FIRST_ROW + requests, :most] = lines.view(requests, most) + FIRST_SLOT
        for slot in range(requests):
            self.cache.bind(slot, FIRST_ROW + slot)
        return OwnLines(), self.executor

    def close(self) -> None:
        """Leave the row table as it was found."""
        self.cache.table.zero_()


def tokens_of_line(tokens: int, in_flight: int, context: int) -> int:
    """Slots that one request of a probe can write: its committed tokens and one block, or a
    prompt that is in flight as a whole.
    """
    return min(max(tokens + MAX_BLOCK, in_flight), context + MAX_BLOCK)
