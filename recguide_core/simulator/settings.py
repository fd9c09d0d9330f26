"""Settings of a simulation and the cells that it consists of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recguide_core.engine.guidance import FULL_MENU
from recguide_core.engine.planners import TAKES_BLOCK, check_method
from recguide_core.errors import UsageError, nearest
from recguide_core.policy.devices import gpu, model_size
from recguide_core.policy.host import NO_HOST, HostTime
from recguide_core.records import MAX_BLOCK

BATCHING = ("ragged", "bucketed", "padded")
ADAPTIVE = frozenset({"adaptive", "recguide"})
MODELS = ("nld-8b", "nld-14b")
VARIANTS = ("first correction", "two corrections", "entropy only", "no AR")
"""Ablations: overlap with fewer branches, adaptive without z_t, recguide on the paper's menu."""


@dataclass(frozen=True, slots=True)
class SimCell:
    """One simulated point: a method at a block size under one load.

    Attributes:
        variant: a part switched off, one of `VARIANTS`; empty = all of the method.
    """

    method: str
    block_size: int | None
    concurrency: int
    batching: str = "ragged"
    variant: str = ""

    @property
    def key(self) -> str:
        """Names the cell, e.g. `linear/16@8` or `adaptive+bucketed@32`."""
        block = "" if self.block_size is None else f"/{self.block_size}"
        how = "" if self.batching == "ragged" else f"+{self.batching}"
        variant = f" ({self.variant})" if self.variant else ""
        return f"{self.method}{block}{how}{variant}@{self.concurrency}"


@dataclass(frozen=True, slots=True)
class SimSettings:
    """What to simulate; raises UsageError when it cannot be.

    Attributes:
        gpu, model: whose prices; the texts are the model's.
        requests: per cell, or None for max(200, 8 C); max_tokens: of every answer.
        prompt_tokens: length of the prompts that are prefilled; 0 leaves prompt passes out and
            charges every request `context` cached tokens instead, as the profiles were measured.
        batching: ragged, bucketed or padded, for the adaptive methods.
        waiting: requests in the engine per batch place (bucketed batches fill when above 1).
        rate, ramp: arrivals a second instead of a closed loop; a ramp rises to `ramp` and falls.
        menu: blocks that recguide chooses from.
        traces: path of a recorded trace table; its requests and tables are used instead of the
            acceptance model's, on the prices of `model`.
        workers: processes.
    """

    gpu: str = "b200"
    model: str = "nld-8b"
    methods: tuple[str, ...] = ("ar", "linear", "overlap", "adaptive", "recguide")
    block_sizes: tuple[int, ...] = (16,)
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    requests: int | None = None
    max_tokens: int = 256
    prompt_tokens: int = 0
    context: int = 800
    seed: int = 0
    batching: str = "ragged"
    waiting: float = 1.0
    rate: float | None = None
    ramp: float | None = None
    host: HostTime = NO_HOST
    menu: tuple[int, ...] = FULL_MENU
    traces: str | None = None
    workers: int = 2

    def __post_init__(self) -> None:
        gpu(self.gpu)
        model_size(self.model)
        if self.model not in MODELS:
            raise UsageError(
                f"No acceptance model for '{self.model}'.", nearest(self.model, MODELS)
            )
        if self.batching not in BATCHING:
            raise UsageError(
                f"Unknown batching '{self.batching}'.", nearest(self.batching, BATCHING)
            )
        for name in self.methods:
            check_method(name)
        for block in (*self.block_sizes, *self.menu):
            if not 1 <= block <= MAX_BLOCK:
                raise UsageError(
                    f"Block size {block} is outside 1..{MAX_BLOCK}.", "Choose blocks in range."
                )
        low = {"max_tokens": 2, "requests": 1, "workers": 1, "waiting": 1, "prompt_tokens": 0}
        for name, least in low.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}.", f"It must be at least {least}.")
        for name in ("rate", "ramp"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}.", "Give requests a second, above 0.")
        if not self.concurrency or min(self.concurrency) < 1:
            raise UsageError("A concurrency below 1 serves nobody.", "Give loads of 1 or more.")
        if self.ramp is not None and self.rate is None:
            raise UsageError("A ramp needs the rate that it starts from.", "Give a rate as well.")

    def cells(self) -> list[SimCell]:
        """Every cell, load by load, methods in the order asked."""
        return [
            SimCell(method, block, load, self.batching if method in ADAPTIVE else "ragged")
            for load in self.concurrency
            for method in self.methods
            for block in (self.block_sizes if method in TAKES_BLOCK else (None,))
        ]

    def requests_for(self, cell: SimCell) -> int:
        """Requests of a cell."""
        return self.requests or max(200, 8 * cell.concurrency)

    def as_record(self) -> dict[str, Any]:
        """The settings as JSON writes them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
