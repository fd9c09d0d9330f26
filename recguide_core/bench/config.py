"""What a bench run is asked to do, and the cells that it consists of.

A cell is one method at one block size under one load; a run measures cells one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recguide_core.datasets.benchmarks import check_template
from recguide_core.engine.planners import NEEDS_GUIDANCE, TAKES_BLOCK, check_method
from recguide_core.engine.settings import BATCHING
from recguide_core.errors import UsageError, nearest
from recguide_core.records import MAX_BLOCK

MIN_REQUESTS = 32
REFERENCE_BATCH = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured point of a run."""

    method: str
    block_size: int | None
    concurrency: int

    @property
    def key(self) -> str:
        """Names the cell within its run, e.g. `linear/16@8`."""
        block = "" if self.block_size is None else f"/{self.block_size}"
        return f"{self.method}{block}@{self.concurrency}"


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """Settings of a run; raises UsageError when one cannot be.

    Attributes:
        requests: requests per cell, or None for max(32, 2 C).
        max_tokens: output limit of a request, unless its data row asks for another length.
        template: `plain`, `instruct` or `raw` (see datasets.benchmarks).
        kv_tokens: size of the KV pool in tokens, or None for what the load needs.
        warmup: requests before the window, with prompts of their own.
        clock: `wall`, or a virtual clock such as `b200/nld-8b` that time is charged from.
        batching: how a step holds blocks of several sizes (engine.settings).
        policy: policy file of the adaptive methods, or None for the one that fits; `tables`:
            folder where it and its tables are looked for; `force`: take it though it was made
            for another model or device.
        held_out: leave out prompts that the policy was made with.
    """

    model: str = "nld-tiny"
    data: tuple[str, ...] = ("demo",)
    methods: tuple[str, ...] = ("ar", "linear")
    block_sizes: tuple[int, ...] = (16,)
    concurrency: tuple[int, ...] = (1, 8)
    requests: int | None = None
    max_tokens: int = 128
    seed: int = 0
    template: str = "plain"
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 0
    kv_tokens: int | None = None
    prefill_chunk: int = 512
    warmup: int = 2
    ignore_eos: bool = False
    check: bool = True
    clock: str = "wall"
    batching: str = "ragged"
    policy: str | None = None
    tables: str | None = None
    force: bool = False
    held_out: bool = False

    def __post_init__(self) -> None:
        for name in self.methods:
            check_method(name)
        check_template(self.template)
        if self.batching not in BATCHING:
            raise UsageError(f"No batching '{self.batching}'.", nearest(self.batching, BATCHING))
        _unique("--methods", self.methods)
        _unique("--block-size", self.block_sizes)
        _unique("--concurrency", self.concurrency)
        for block in self.block_sizes:
            if not 1 <= block <= MAX_BLOCK:
                raise UsageError(
                    f"--block-size {block} is outside 1..{MAX_BLOCK}.",
                    f"Published models are trained with blocks of up to {MAX_BLOCK} tokens.",
                )
        for load in self.concurrency:
            _at_least_one("--concurrency", load)
        _at_least_one("--max-tokens", self.max_tokens)
        _at_least_one("--prefill-chunk", self.prefill_chunk)
        for option, value in (("--requests", self.requests), ("--kv-tokens", self.kv_tokens)):
            if value is not None:
                _at_least_one(option, value)
        for option, value in (
            ("--warmup", self.warmup),
            ("--seed", self.seed),
            ("--threads", self.threads),
        ):
            if value < 0:
                raise UsageError(f"{option} is {value}.", f"{option} must be at least 0.")

    @property
    def guided(self) -> bool:
        """Whether a method of the run needs tables and a policy."""
        return not NEEDS_GUIDANCE.isdisjoint(self.methods)

    def cells(self) -> list[Cell]:
        """Every cell, load by load, methods in the order asked."""
        return [
            Cell(method, block, load)
            for load in self.concurrency
            for method in self.methods
            for block in (self.block_sizes if method in TAKES_BLOCK else (None,))
        ]

    def requests_for(self, cell: Cell) -> int:
        """Measured requests of a cell."""
        if self.requests is not None:
            return self.requests
        return max(MIN_REQUESTS, 2 * cell.concurrency)

    def as_record(self) -> dict[str, Any]:
        """The settings as JSON writes them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def _at_least_one(option: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{option} is {value}.", f"{option} must be at least 1.")


def _unique(option: str, values: Sequence[str] | Sequence[int]) -> None:
    if not values:
        raise UsageError(f"{option} is empty.", "Name at least one value.")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise UsageError(f"{option} names {twice[0]} twice.", "Name each value once.")
