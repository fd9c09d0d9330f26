"""A figure with the data that it draws, and how cells are named and grouped in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recguide_core.bench.report import svg
from recguide_core.bench.report.chart import Chart
from recguide_core.bench.rows import RequestRow, cell_of


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: its chart, what it says, and its data as header and rows."""

    name: str
    title: str
    caption: str
    chart: Chart
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @property
    def svg(self) -> str:
        return svg.draw(self.chart)


CellRows = Sequence[dict[str, Any]]
ByCell = dict[str, list[RequestRow]]


def label_of(row: dict[str, Any]) -> str:
    """Method with its block size."""
    block = row["block_size"]
    return str(row["method"]) if block is None else f"{row['method']} B={block}"


def key_of(row: dict[str, Any]) -> str:
    """The key of a cell's row."""
    return cell_of(row).key


def load_value(row: dict[str, Any]) -> float:
    """The load as a number: the trace's speed, requests per second, or requests in flight."""
    return float(row.get("speed") or row.get("rate") or row["concurrency"])


def load_axis(cells: CellRows) -> str:
    """What `load_value` is in these cells."""
    if any(row.get("speed") for row in cells):
        return "speed of the trace"
    return (
        "requests per second" if any(row.get("rate") for row in cells) else "requests in flight, C"
    )


def lines_of(cells: CellRows) -> dict[str, list[dict[str, Any]]]:
    """Cells of each method and block, by load."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(cells, key=load_value):
        if row["tps"]:
            found.setdefault(label_of(row), []).append(row)
    return found
