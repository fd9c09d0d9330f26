"""Two saved runs side by side: a ratio per cell and metric, with a bootstrap interval.

Requests with the same prompt are compared in pairs, so that differences of prompts cancel; the
interval is over requests. A verdict is given only where the interval leaves 1 out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recguide_core.bench.rows import RequestRow
from recguide_core.bench.store import read_run
from recguide_core.errors import DataError
from recguide_core.metrics import METRICS

SCHEMA = "recguide.compare/1"
RESAMPLES = 4000
INTERVAL = (2.5, 97.5)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Statistic:
    """A metric as a ratio of sums over requests, which a bootstrap can resample."""

    name: str
    numerator: Callable[[RequestRow], float]
    denominator: Callable[[RequestRow], float]


def _residence(row: RequestRow) -> float:
    return (row.end_s or 0.0) - row.arrival_s


def _decode_time(row: RequestRow) -> float:
    return (row.end_s or 0.0) - (row.first_s or 0.0)


STATISTICS = (
    _Statistic("tps_per_request", lambda r: r.output_tokens / _residence(r), lambda r: 1.0),
    _Statistic("tau", lambda r: 2.0 * r.round_tokens, lambda r: float(r.forwards)),
    _Statistic("accepted_length", lambda r: float(r.round_tokens), lambda r: float(r.rounds)),
    _Statistic("reuse", lambda r: float(r.reused), lambda r: float(r.rounds)),
    _Statistic("ttft_ms", lambda r: 1e3 * ((r.first_s or 0.0) - r.arrival_s), lambda r: 1.0),
    _Statistic("tpot_ms", lambda r: 1e3 * _decode_time(r), lambda r: max(r.output_tokens - 1, 0)),
    _Statistic("e2e_ms", lambda r: 1e3 * _residence(r), lambda r: 1.0),
)


def compare_runs(first: Path, second: Path, seed: int = 0) -> dict[str, Any]:
    """The second run against the first, cell by cell.

    Returns:
        `recguide.compare/1`: for every cell of both, per metric the two values, their ratio
        (second / first), its 95 % interval and a verdict: better, worse, or no difference shown.

    Raises:
        DataError: not a run, or no cell in common.
    """
    left, right = _load(first), _load(second)
    shared = [key for key in left.cells if key in right.cells]
    if not shared:
        raise DataError(
            f"{first} and {second} have no cell in common.",
            f"The first has {', '.join(left.cells)}; the second {', '.join(right.cells)}.",
        )
    rng = np.random.default_rng(seed)
    return {
        "schema": SCHEMA,
        "first": str(first),
        "second": str(second),
        "changed_settings": _changed(left.settings, right.settings),
        "only_in_one": sorted(set(left.cells) ^ set(right.cells)),
        "rows": [_cell(key, left, right, rng) for key in shared],
    }


@dataclass(frozen=True, slots=True)
class _Run:
    settings: Mapping[str, Any]
    cells: dict[str, list[RequestRow]]
    tps: dict[str, float | None]


def _load(folder: Path) -> _Run:
    about, rows, finished = read_run(folder)
    cells: dict[str, list[RequestRow]] = {key: [] for key in finished}
    for row in rows:
        if row.ok and row.measured and row.cell in cells:
            cells[row.cell].append(row)
    settings = {**about["settings"], "model_hash": about["model_hash"]}
    tps = {key: row["tps"] for key, row in finished.items()}
    return _Run(settings, {key: found for key, found in cells.items() if found}, tps)


def _changed(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = sorted(left.keys() | right.keys())
    return {n: [left.get(n), right.get(n)] for n in names if left.get(n) != right.get(n)}


def _cell(key: str, left: _Run, right: _Run, rng: np.random.Generator) -> dict[str, Any]:
    pairs = _pairs(left.cells[key], right.cells[key])
    paired = pairs is not None
    ours, theirs = pairs if pairs is not None else (left.cells[key], right.cells[key])
    metrics = {s.name: _compare(s, ours, theirs, paired, rng) for s in STATISTICS}
    return {
        "cell": key,
        "requests": [len(ours), len(theirs)],
        "paired": paired,
        "metrics": {"tps": _whole_run(left.tps[key], right.tps[key]), **metrics},
    }


def _whole_run(left: float | None, right: float | None) -> dict[str, Any]:
    """Throughput belongs to a run, not to a request: one number each, no interval."""
    ratio = right / left if left and right else None
    verdict = "one number each"
    return {"values": [left, right], "ratio": ratio, "interval": None, "verdict": verdict}


def _pairs(
    left: Sequence[RequestRow], right: Sequence[RequestRow]
) -> tuple[list[RequestRow], list[RequestRow]] | None:
    """Rows of equal index and prompt; None unless most requests have a partner."""
    other = {(row.index, row.prompt_hash): row for row in right}
    ours = [row for row in left if (row.index, row.prompt_hash) in other]
    if 2 * len(ours) < max(len(left), len(right)):
        return None
    return ours, [other[row.index, row.prompt_hash] for row in ours]


def _compare(
    statistic: _Statistic,
    left: Sequence[RequestRow],
    right: Sequence[RequestRow],
    paired: bool,
    rng: np.random.Generator,
) -> dict[str, Any]:
    values = [_sums(statistic, rows) for rows in (left, right)]
    points = [_ratio(n.sum(), d.sum()) for n, d in values]
    ratio = _ratio(points[1], points[0])
    if not np.isfinite(ratio) or min(len(left), len(right)) < 2:
        found = [None if not np.isfinite(p) else float(p) for p in points]
        return {"values": found, "ratio": None, "interval": None, "verdict": "not comparable"}
    draws = rng.integers(0, len(left), (RESAMPLES, len(left)))
    others = draws if paired else rng.integers(0, len(right), (RESAMPLES, len(right)))
    resampled = [
        _ratio(n[i].sum(1), d[i].sum(1)) for (n, d), i in zip(values, (draws, others), strict=True)
    ]
    spread = _ratio(resampled[1], resampled[0])
    low, high = np.nanpercentile(spread, INTERVAL)
    return {
        "values": [float(p) for p in points],
        "ratio": float(ratio),
        "interval": [float(low), float(high)],
        "verdict": verdict(statistic.name, float(low), float(high)),
    }


def _sums(statistic: _Statistic, rows: Sequence[RequestRow]) -> tuple[Floats, Floats]:
    return (
        np.array([statistic.numerator(row) for row in rows], dtype=np.float64),
        np.array([statistic.denominator(row) for row in rows], dtype=np.float64),
    )


def _ratio(numerator: Any, denominator: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(numerator, np.float64) / np.asarray(denominator, np.float64)


def verdict(metric: str, low: float, high: float) -> str:
    """What an interval of the ratio second / first says about a metric."""
    if low <= 1.0 <= high:
        return "no difference shown"
    better = METRICS[metric].better
    if better == "neither":
        return "different"
    return "better" if (low > 1.0) == (better == "higher") else "worse"
