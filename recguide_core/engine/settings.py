"""Settings of an engine, resolved once and then frozen."""

from __future__ import annotations

from dataclasses import dataclass

from recguide_core.errors import UsageError, nearest
from recguide_core.records import MAX_BLOCK

BATCHING = ("ragged", "bucketed")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits and modes of an engine.

    Attributes:
        max_requests: requests that run at once (nominal concurrency C).
        max_admitted: requests that hold a slot; more than `max_requests` lets buckets fill.
            0 = max_requests.
        max_tokens_per_step: packed tokens of one forward that prompts may fill.
        prefill_chunk: longest piece of a prompt in one forward, 0 = whole prompts.
        kv_tokens: tokens of the KV pool; 0 = enough for `max_admitted` full contexts, capped.
        page_size: tokens of one page.
        context: longest sequence; 0 = the model's.
        batching: ragged (all sizes in one forward) or bucketed (one size a forward).
        bucket_wait: forwards after which a waiting bucket goes first (bucketed).
        entropy_positions: decisions that e_t averages over.
        threads: torch threads on CPU, 0 = leave as they are.
        resident: run whole rounds on the device where they can be; None = where the back end has
            graphs. True without a device runs the torch twins of the kernels: for tests only.
        attention_backend: torch, triton or flashinfer; None = the table of `kernels.backends`.
    """

    max_requests: int = 8
    max_admitted: int = 0
    max_tokens_per_step: int = 4096
    prefill_chunk: int = 512
    kv_tokens: int = 0
    page_size: int = 16
    context: int = 0
    batching: str = "ragged"
    bucket_wait: int = 8
    entropy_positions: int = MAX_BLOCK
    threads: int = 0
    attention_backend: str | None = None
    resident: bool | None = None

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_tokens_per_step", "page_size", "bucket_wait"):
            self._at_least(name, 1)
        for name in ("max_admitted", "prefill_chunk", "kv_tokens", "context", "threads"):
            self._at_least(name, 0)
        if self.batching not in BATCHING:
            raise UsageError(
                f"Unknown batching '{self.batching}'.", nearest(self.batching, BATCHING)
            )
        if 0 < self.max_admitted < self.max_requests:
            raise UsageError(
                f"max_admitted {self.max_admitted} is below max_requests {self.max_requests}.",
                "Give at least as many admitted requests as running ones.",
            )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(
                f"{name} is {value!r}.", f"Give a whole number of at least {least} for {name}."
            )

    @property
    def slots(self) -> int:
        """Requests that can hold a slot."""
        return self.max_admitted or self.max_requests
