"""The figures of a run, in the order of its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recguide_core.bench.report import choices, drafts, over_load
from recguide_core.bench.report.figure import ByCell, CellRows, Figure
from recguide_core.bench.rows import RequestRow


def all_figures(cells: CellRows, requests: Sequence[RequestRow]) -> list[Figure]:
    """Every figure that the run has data for."""
    by_cell: ByCell = {}
    for row in requests:
        if row.ok and row.measured:
            by_cell.setdefault(row.cell, []).append(row)
    makers: Sequence[Callable[[CellRows, ByCell], Figure | None]] = (
        over_load.pareto,
        drafts.survival,
        drafts.acceptance,
        over_load.forward_time,
        drafts.margins,
        drafts.confidences,
        choices.blocks,
        choices.sources,
        over_load.breakdown,
        over_load.latency,
        over_load.turns,
    )
    made = [make(cells, by_cell) for make in makers]
    return [figure for figure in made if figure is not None]
