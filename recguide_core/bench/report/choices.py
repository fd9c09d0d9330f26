"""Figures of what the planner chose: block sizes, and where drafts came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from recguide_core.bench.report.chart import BarChart
from recguide_core.bench.report.figure import ByCell, CellRows, Figure, key_of
from recguide_core.bench.rows import RequestRow
from recguide_core.records import Source


def blocks(cells: CellRows, by_cell: ByCell) -> Figure | None:
    chosen = _shares(cells, by_cell, lambda r: r.round_block)
    caption = "Block size of the rounds of each cell; B = 1 is a plain AR step."
    return _stacked("blocks", "Block sizes by load", caption, chosen, lambda b: f"B = {b}")


def sources(cells: CellRows, by_cell: ByCell) -> Figure | None:
    names = {
        Source.NONE: "no draft",
        Source.DRAFT: "own forward",
        Source.CORRECTION: "correction branch",
        Source.CONTINUATION: "continuation branch",
        Source.POSITION: "position branch",
        Source.FIRST: "beside the prompt",
        Source.DRAFTER: "drafter model",
    }
    found = _shares(cells, by_cell, lambda r: r.round_source)
    caption = "A draft from a branch costs no forward of its own."
    title = "Where the draft of a round came from"
    return _stacked("draft-sources", title, caption, found, lambda s: names[Source(s)])


def _shares(
    cells: CellRows, by_cell: ByCell, of: Callable[[RequestRow], Sequence[int]]
) -> dict[str, Counter[int]]:
    """Counts of a per-round property, by cell."""
    found = {}
    for row in cells:
        counts = Counter(v for request in by_cell.get(key_of(row), ()) for v in of(request))
        if counts:
            found[key_of(row)] = counts
    return found


def _stacked(
    name: str,
    title: str,
    caption: str,
    shares: dict[str, Counter[int]],
    label: Callable[[int], str],
) -> Figure | None:
    values = sorted({value for counts in shares.values() for value in counts})
    if len(values) < 2:
        return None
    groups = list(shares)
    stacks = [
        (label(value), [shares[g][value] / shares[g].total() for g in groups]) for value in values
    ]
    data = [(g, shares[g].total(), *(s[i] for _, s in stacks)) for i, g in enumerate(groups)]
    chart = BarChart(title, groups, stacks, "share of rounds")
    return Figure(name, title, caption, chart, ("cell", "rounds", *(n for n, _ in stacks)), data)
