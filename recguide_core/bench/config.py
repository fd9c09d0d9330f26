"""What a bench run is asked to do, and the cells that it consists of.

A cell is one method at one block size under one load; a run measures cells one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recguide_core.bench.arrivals import check_rates, check_speeds, parse_ramp
from recguide_core.datasets.benchmarks import check_template
from recguide_core.engine.planners import NEEDS_GUIDANCE, TAKES_BLOCK, check_method
from recguide_core.engine.settings import BATCHING
from recguide_core.errors import UsageError, nearest
from recguide_core.records import MAX_BLOCK

SERVER = "server"
"""Method of a run against a server that is taken as it is."""
MIN_REQUESTS, MANY_REQUESTS = 32, 128
"""Requests of a cell by default: twice the load within these, and never below the load itself."""
REFERENCE_BATCH = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured point of a run."""

    method: str
    block_size: int | None
    concurrency: int
    rate: float | None = None
    ramp: str | None = None
    speed: float | None = None

    @property
    def open_loop(self) -> bool:
        """Whether requests come at moments of their own, however busy the target is."""
        return self.rate is not None or self.speed is not None

    @property
    def load(self) -> str:
        """The load in words: `8`, `1:8:1`, `8, 2/s`, `8, trace x2`."""
        load = self.ramp or str(self.concurrency)
        if self.speed is not None:
            return f"{load}, trace x{self.speed:g}"
        return load if self.rate is None else f"{load}, {self.rate:g}/s"

    @property
    def key(self) -> str:
        """Names the cell within its run, e.g. `linear/16@8`, `ar@8,2/s`, `ar@1:8:1`, `ar@8,x2`."""
        block = "" if self.block_size is None else f"/{self.block_size}"
        load = self.ramp or str(self.concurrency)
        rate = "" if self.rate is None else f",{self.rate:g}/s"
        speed = "" if self.speed is None else f",x{self.speed:g}"
        return f"{self.method}{block}@{load}{rate}{speed}"


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """Settings of a run; raises UsageError when one cannot be.

    Attributes:
        requests: requests per cell, or None for twice C within 32..128.
        max_tokens: output limit of a request, unless its data row asks for another length.
        template: `plain`, `instruct` or `raw` (see datasets.benchmarks).
        kv_tokens: size of the KV pool in tokens, or None for what the load needs.
        rates: requests per second, one load each, instead of a closed loop; `concurrency` then
            limits how many run at once. `arrivals`: poisson or constant.
        ramp: levels of concurrency that one load passes through (arrivals.parse_ramp).
        replay: trace file whose arrivals and lengths are repeated, instead of a closed loop, at
            each of `speeds` (2: twice as fast); `time_unit` of its timestamps: auto, ms or s.
        ttft_limit_ms, tpot_limit_ms: what a request has to meet to count in goodput.
        warmup: requests before the window, with prompts of their own; `cooldown`: at most so many
            beside its end, to hold the load up.
        bitwise: compute deciding tokens one by one and compare AR's decisions bit for bit (CPU).
        clock: `wall`, or a virtual clock such as `b200/nld-8b` that time is charged from.
        batching: how a step holds blocks of several sizes (engine.settings).
        policy: policy file of the adaptive methods, or None for the one that fits; `tables`:
            folder where it and its tables are looked for; `force`: take it though it was made
            for another model or device.
        held_out: leave out prompts that the policy was made with.
        base_url: a server to measure instead of the embedded engine.
        engine: embedded or sglang; tp: GPUs that share SGLang's model.
    """

    model: str = "nld-tiny"
    data: tuple[str, ...] = ("demo",)
    methods: tuple[str, ...] = ("ar", "linear")
    block_sizes: tuple[int, ...] = (16,)
    concurrency: tuple[int, ...] = (1, 8)
    rates: tuple[float, ...] = ()
    arrivals: str = "poisson"
    ramp: str | None = None
    replay: str | None = None
    speeds: tuple[float, ...] = (1.0,)
    time_unit: str = "auto"
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None
    requests: int | None = None
    max_tokens: int = 128
    seed: int = 0
    template: str = "plain"
    device: str = "cpu"
    attention_backend: str | None = None
    dtype: str = "float32"
    threads: int = 0
    kv_tokens: int | None = None
    prefill_chunk: int = 512
    warmup: int = 2
    cooldown: int = 0
    ignore_eos: bool = False
    check: bool = True
    bitwise: bool = False
    clock: str = "wall"
    batching: str = "ragged"
    policy: str | None = None
    tables: str | None = None
    force: bool = False
    held_out: bool = False
    base_url: str | None = None
    engine: str = "embedded"
    tp: int = 1

    def __post_init__(self) -> None:
        self._check_names()
        self._check_load()
        self._check_bitwise()
        for option, least, value in (
            ("--max-tokens", 1, self.max_tokens),
            ("--prefill-chunk", 1, self.prefill_chunk),
            ("--requests", 1, self.requests),
            ("--kv-tokens", 1, self.kv_tokens),
            ("--warmup", 0, self.warmup),
            ("--cooldown", 0, self.cooldown),
            ("--seed", 0, self.seed),
            ("--threads", 0, self.threads),
        ):
            _at_least(least, option, value)

    def _check_names(self) -> None:
        for name in self.methods:
            if self.base_url is None or name != SERVER:
                check_method(name)
        check_template(self.template)
        if self.batching not in BATCHING:
            raise UsageError(f"No batching '{self.batching}'.", nearest(self.batching, BATCHING))
        _unique("--methods", self.methods)
        _unique("--block-size", self.block_sizes)
        for block in self.block_sizes:
            if not 1 <= block <= MAX_BLOCK:
                raise UsageError(
                    f"--block-size {block} is outside 1..{MAX_BLOCK}.",
                    f"Published models are trained with blocks of up to {MAX_BLOCK} tokens.",
                )

    def _check_bitwise(self) -> None:
        for option, given in (
            ("--base-url", self.base_url is not None),
            ("--engine", self.engine != "embedded"),
            ("--device", self.device != "cpu"),
            ("--attention-backend", self.attention_backend is not None),
        ):
            if self.bitwise and given:
                raise UsageError(
                    f"{option} does not go with --bitwise.",
                    "The bitwise mode is one of the embedded engine on a CPU.",
                )

    def _check_load(self) -> None:
        _unique("--concurrency", self.concurrency)
        for load in self.concurrency:
            _at_least(1, "--concurrency", load)
        check_rates(self.rates, self.arrivals)
        check_speeds(self.speeds)
        if self.ramp is not None:
            parse_ramp(self.ramp)
        given = {"--ramp": self.ramp, "--rate": self.rates, "--replay": self.replay}
        kinds = [option for option, value in given.items() if value]
        if len(kinds) > 1:
            raise UsageError(f"{' and '.join(kinds)} are given.", "Choose one kind of load.")
        for option, limit in (
            ("--slo-ttft", self.ttft_limit_ms),
            ("--slo-tpot", self.tpot_limit_ms),
        ):
            if limit is not None and not limit > 0:
                raise UsageError(f"{option} is {limit:g}.", "Give milliseconds above 0.")

    @property
    def guided(self) -> bool:
        """Whether a method of the run needs tables and a policy."""
        return not NEEDS_GUIDANCE.isdisjoint(self.methods)

    def cells(self) -> list[Cell]:
        """Every cell, load by load, methods in the order asked."""
        return [
            Cell(method, block, load, rate, self.ramp, speed)
            for load in self._loads()
            for rate in self.rates or (None,)
            for speed in (self.speeds if self.replay else (None,))
            for method in self.methods
            for block in (self.block_sizes if method in TAKES_BLOCK else (None,))
        ]

    def _loads(self) -> tuple[int, ...]:
        return self.concurrency if self.ramp is None else (parse_ramp(self.ramp).peak,)

    def requests_for(self, cell: Cell) -> int:
        """Measured requests of a cell."""
        if self.requests is not None:
            return self.requests
        few = min(2 * cell.concurrency, MANY_REQUESTS)
        return max(MIN_REQUESTS, few, cell.concurrency)

    @property
    def most_requests(self) -> int:
        """Requests of the cell that has most of them."""
        return max(self.requests_for(cell) for cell in self.cells())

    def as_record(self) -> dict[str, Any]:
        """The settings as JSON writes them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def _at_least(least: int, option: str, value: int | None) -> None:
    if value is not None and value < least:
        raise UsageError(f"{option} is {value}.", f"{option} must be at least {least}.")


def _unique(option: str, values: Sequence[str] | Sequence[int]) -> None:
    if not values:
        raise UsageError(f"{option} is empty.", "Name at least one value.")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise UsageError(f"{option} names {twice[0]} twice.", "Name each value once.")
