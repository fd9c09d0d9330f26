"""Suite `plan`: the largest load that still meets a target, with which settings, and what if.

For each method the simulator looks for the largest concurrency at which a request gets its target
speed or latency; then the same for other block menus, host times and GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recguide_core.bench.suites.report import Cell, Row, SuiteReport, SuiteTable
from recguide_core.engine.guidance import PAPER_MENU
from recguide_core.errors import UsageError
from recguide_core.policy.devices import gpu
from recguide_core.policy.host import NO_HOST
from recguide_core.simulator.prices import SERVING_HOST, priced
from recguide_core.simulator.run import row_of, simulate_cell
from recguide_core.simulator.settings import SimCell, SimSettings

MOST = 256
"""Largest load that is tried; the profiles end at 128."""
REQUESTS = 48
CANDIDATES = (
    ("ar", None),
    ("linear", 8),
    ("linear", 16),
    ("linear", 32),
    ("overlap", 16),
    ("overlap", 32),
    ("recguide", None),
)
WHAT_IF = (("linear", 16), ("recguide", None))


@dataclass(frozen=True, slots=True)
class Target:
    """What a request must get; at least one of both.

    Attributes:
        tps: tokens a second of one request, mean over requests of tokens / residence.
        tpot_ms: milliseconds a token after the first, median over requests.
    """

    tps: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        if self.tps is None and self.tpot_ms is None:
            raise UsageError("A plan needs a target.", "Give tokens a second or ms a token.")
        for name, value in (("tps", self.tps), ("tpot_ms", self.tpot_ms)):
            if value is not None and not value > 0:
                raise UsageError(f"The target {name} is {value}.", "Give a value above 0.")

    def met(self, row: dict[str, float]) -> bool:
        """Whether a cell's row meets the target."""
        fast = self.tps is None or row["tps_per_request"] >= self.tps
        return fast and (self.tpot_ms is None or row["tpot_ms"] <= self.tpot_ms)

    def text(self) -> str:
        """The target in words."""
        parts = []
        if self.tps is not None:
            parts.append(f"at least {self.tps:g} tokens/s per request")
        if self.tpot_ms is not None:
            parts.append(f"at most {self.tpot_ms:g} ms per token")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Largest load of a setting that meets the target; None where even one request misses it."""

    load: int | None
    row: dict[str, float]

    def cells(self) -> list[Cell]:
        """C, requests a second, aggregate and per-request tokens/s, ms per token."""
        if self.load is None:
            values: list[float | None] = [0.0, None, None]
        else:
            values = [float(self.load), self.row["requests_per_s"], self.row["tps"]]
        return [Cell(v) for v in (*values, self.row["tps_per_request"], self.row["tpot_ms"])]


def capacity(settings: SimSettings, method: str, block: int | None, target: Target) -> Capacity:
    """Search by doubling, then by halving the gap down to 5 % of the load.

    Speed per request falls with load up to the steps of the cost curve; the load found meets the
    target, and loads above may do so by luck of a step only.
    """
    tried: dict[int, dict[str, float]] = {}

    def meets(load: int) -> bool:
        cell = SimCell(method, block, load, settings.batching if block is None else "ragged")
        count = max(REQUESTS, 3 * load)
        tried[load] = row_of(simulate_cell(settings, cell, count=count), settings)
        return target.met(tried[load])

    if not meets(1):
        return Capacity(None, tried[1])
    good, bad = 1, 2
    while bad <= MOST and meets(bad):
        good, bad = bad, bad * 2
    if good == MOST:
        return Capacity(good, tried[good])
    while bad - good > max(1, good // 20):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if meets(middle) else (good, middle)
    return Capacity(good, tried[good])


def plan_suite(
    settings: SimSettings,
    target: Target,
    *,
    gpus: Sequence[str] = ("b200", "h200", "h100"),
    done: Callable[[str], None] = lambda line: None,
) -> SuiteReport:
    """Capacity of every candidate, then what-ifs for a fixed block and recguide.

    Args:
        settings: GPU, model, answer and prompt lengths, host time, menu of the plan.
        gpus: to compare with; done: called with a line per finished row.
    """
    for name in gpus:
        gpu(name)
    found = {}
    rows = []
    for method, block in CANDIDATES:
        found[method, block] = capacity(settings, method, block, target)
        name = method if block is None else f"{method} {block}"
        rows.append(Row(name, found[method, block].cells()))
        done(f"{name}: C = {found[method, block].load or 0}")
    best = max(found, key=lambda key: _score(found[key]))
    columns = ("C", "requests/s", "tokens/s", "tokens/s per request", "ms per token")
    place = f"{settings.gpu}/{settings.model} ({priced(settings.gpu, settings.model).source})"
    tables = [
        SuiteTable(
            f"Capacity on {place}: {target.text()}",
            columns,
            rows,
            ".1f",
            _advice(best, found[best], target),
        ),
        _what_if(settings, target, gpus, columns, done),
    ]
    about = {"settings": settings.as_record(), "target": target.text()}
    return SuiteReport("plan", tables, about)


def _score(found: Capacity) -> tuple[int, float]:
    """Largest load first, then speed."""
    return found.load or 0, found.row["tps"]


def _advice(best: tuple[str, int | None], found: Capacity, target: Target) -> str:
    method, block = best
    if found.load is None:
        return (
            f"No method gives {target.text()} even to a single request; the nearest is {method} "
            f"with {found.row['tps_per_request']:.0f} tokens/s."
        )
    option = "" if block is None else f" --block-size {block}"
    return (
        f"Largest load: C = {found.load} with `--methods {method}{option}`, "
        f"{found.row['tps']:.0f} tokens/s in all. Loads are searched to within 5 %; beyond C = 128 "
        f"and for fused or ragged forwards prices are modelled."
    )


def _what_if(
    settings: SimSettings,
    target: Target,
    gpus: Sequence[str],
    columns: Sequence[str],
    done: Callable[[str], None],
) -> SuiteTable:
    cases = {f"GPU {g}": replace(settings, gpu=g) for g in gpus if g != settings.gpu}
    cases["no host time"] = replace(settings, host=NO_HOST)
    cases["host time of a public serving table"] = replace(settings, host=SERVING_HOST)
    cases["blocks 8/16/32 only"] = replace(settings, menu=PAPER_MENU)
    rows = []
    for name, case in cases.items():
        for method, block in WHAT_IF:
            if name.startswith("blocks") and block is not None:
                continue
            found = capacity(case, method, block, target)
            label = f"{name}: {method}" + ("" if block is None else f" {block}")
            rows.append(Row(label, found.cells()))
            done(f"{label}: C = {found.load or 0}")
    text = (
        "GPUs without a profile are priced by their published peaks with the overheads of the "
        "B200 fits carried over; read them as estimates, not as measurements."
    )
    return SuiteTable(f"What if: {target.text()}", columns, rows, ".1f", text)
