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


def lines_of(cells: CellRows) -> dict[str, list[dict[str, Any]]]:
    """Cells of each method and block, by load."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(cells, key=lambda row: row["concurrency"]):
        if row["tps"]:
            found.setdefault(label_of(row), []).append(row)
    return found
