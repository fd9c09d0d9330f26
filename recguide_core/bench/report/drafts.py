"""Figures of drafts: how many tokens pass and how sure the model was (Figures 2a and 3)."""

from __future__ import annotations

import numpy as np

from recguide_core.bench.observe import BINS
from recguide_core.bench.report.chart import Axes, BarChart, LineChart, Series
from recguide_core.bench.report.figure import ByCell, CellRows, Figure, key_of, label_of


def survival(cells: CellRows, by_cell: ByCell) -> Figure | None:
    accepted = _accepted(cells, by_cell)
    if not accepted:
        return None
    series, data = [], []
    for name, pairs in accepted.items():
        lengths = np.array([a for _, a in pairs])
        longest = max(block for block, _ in pairs)
        places = list(range(1, longest + 1))
        alive = [float((lengths >= k).mean()) for k in places]
        series.append(Series(name, places, alive))
        data += [(name, k, p, len(pairs)) for k, p in zip(places, alive, strict=True)]
    title = "Share of rounds that accept at least k tokens"
    caption = "P(A >= k), the verifier's own token included. The area under a line is mean A."
    chart = LineChart(title, series, Axes("k", "P(A >= k)", top=1.0), marks=False)
    return Figure("survival", title, caption, chart, ("method", "k", "share", "rounds"), data)


def acceptance(cells: CellRows, by_cell: ByCell) -> Figure | None:
    accepted = _accepted(cells, by_cell)
    if not accepted:
        return None
    spans = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32))
    names = list(accepted)
    stacks = []
    for low, high in spans:
        name = str(low) if low == high else f"{low}..{high}"
        shares = [
            sum(low <= a <= high for _, a in accepted[method]) / len(accepted[method])
            for method in names
        ]
        if any(shares):
            stacks.append((f"A = {name}", shares))
    data = [(method, *(s[i] for _, s in stacks)) for i, method in enumerate(names)]
    title = "How many tokens a round accepts"
    caption = "Shares of the rounds that verified a draft, all loads together."
    chart = BarChart(title, names, stacks, "share of rounds")
    header = ("method", *(name for name, _ in stacks))
    return Figure("acceptance", title, caption, chart, header, data)


def margins(cells: CellRows, _: ByCell) -> Figure | None:
    return _distribution(cells, "margin", "Margin between the two best draft tokens")


def confidences(cells: CellRows, _: ByCell) -> Figure | None:
    return _distribution(cells, "confidence", "Probability of the draft token")


def _accepted(cells: CellRows, by_cell: ByCell) -> dict[str, list[tuple[int, int]]]:
    """(B, A) of every round that verified a draft, by method, loads together."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in cells:
        for request in by_cell.get(key_of(row), ()):
            pairs = zip(request.round_block, request.round_accepted, strict=True)
            drafted = [(block, accepted) for block, accepted in pairs if block > 1]
            found.setdefault(label_of(row), []).extend(drafted)
    return {name: pairs for name, pairs in found.items() if pairs}


def _distribution(cells: CellRows, what: str, title: str) -> Figure | None:
    """Cumulative distributions of passed and first-rejected drafts, all cells together."""
    series, data = [], []
    edges = [(i + 1) / BINS for i in range(BINS)]
    for fate in ("passed", "rejected"):
        counts = np.zeros(BINS)
        for row in cells:
            counts += np.array((row.get("drafts") or {}).get(what, {}).get(fate, [0] * BINS))
        if not counts.sum():
            return None
        shares = (np.cumsum(counts) / counts.sum()).tolist()
        series.append(Series(fate, [0.0, *edges], [0.0, *shares]))
        data += [(fate, x, y, int(counts.sum())) for x, y in zip(edges, shares, strict=True)]
    caption = "Draft tokens that were accepted, and the first of each round that was not."
    chart = LineChart(title, series, Axes(what, "share below", top=1.0), marks=False)
    return Figure(what, title, caption, chart, ("drafts", what, "share", "tokens"), data)
