"""Writes a run's report into its folder: `report.html`, and `figures/` with SVG and CSV.

Where matplotlib is installed, each figure is there as PNG too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from recguide_core.bench.report import png
from recguide_core.bench.report.figure import CellRows, Figure
from recguide_core.bench.report.figures import all_figures
from recguide_core.bench.report.page import page
from recguide_core.bench.rows import RequestRow
from recguide_core.tables import write_whole

PAGE, FIGURES = "report.html", "figures"


def write_report(
    folder: Path, about: dict[str, Any], cells: CellRows, requests: Sequence[RequestRow]
) -> Path:
    """Write the report of a run and return the path of its page.

    Args:
        about: settings and versions (`run.json`); cells: rows of the cells; requests: all rows.
    """
    figures = all_figures(cells, requests)
    for figure in figures:
        _write(folder / FIGURES / f"{figure.name}.svg", figure.svg)
        _write(folder / FIGURES / f"{figure.name}.csv", csv_text(figure))
        if png.available():
            _put(folder / FIGURES / f"{figure.name}.png", png.draw(figure.chart))
    target = folder / PAGE
    _write(target, page(about, cells, figures))
    return target


def csv_text(figure: Figure) -> str:
    """The figure's data with a header; empty cells where a value does not exist."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(figure.header)
    writer.writerows(["" if v is None else v for v in row] for row in figure.rows)
    return out.getvalue()


def _write(path: Path, text: str) -> None:
    _put(path, text.encode())


def _put(path: Path, content: bytes) -> None:
    def put(stream: BinaryIO) -> None:
        stream.write(content)

    write_whole(path, put)
