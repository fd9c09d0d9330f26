"""Charts as PNG, for slides and mails; needs matplotlib (the extra `plots`)."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from recguide_core.bench.report.chart import BarChart, Chart, LineChart

COLOURS = (
    "#2563c9", "#d9541e", "#0f8a6d", "#a23bb0", "#b98900", "#3f9bd8", "#c92a55", "#6b7280",
)  # fmt: skip
"""The light colours of svg.py, in its order."""
DASHES = ("-", "--", ":")
WIDTH, HEIGHT, DPI = 8.0, 4.75, 160


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(chart: Chart) -> bytes:
    """The chart as a PNG on white. The same chart gives the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if isinstance(chart, LineChart):
        _lines(axes, chart)
    else:
        _bars(axes, chart)
    axes.set_title(chart.title, fontsize=11)
    axes.grid(axis="y", color="#e3e6ec")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _lines(axes: Any, chart: LineChart) -> None:
    for number, line in enumerate(chart.series):
        axes.plot(
            line.x,
            line.y,
            label=line.label,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            marker="o" if chart.marks else "",
            markersize=5,
        )
    if chart.axes.log_x:
        loads = sorted({x for line in chart.series for x in line.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [f"{x:g}" for x in loads])
        axes.minorticks_off()
    axes.set_ylim(0, chart.axes.top)
    axes.set_xlabel(chart.axes.x)
    axes.set_ylabel(chart.axes.y)


def _bars(axes: Any, chart: BarChart) -> None:
    base = [0.0] * len(chart.groups)
    for number, (label, values) in enumerate(chart.stacks):
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(range(len(values)), values, 0.7, base, label=label, color=colour)
        base = [low + value for low, value in zip(base, values, strict=True)]
    slanted = sum(map(len, chart.groups)) > 70
    axes.set_xticks(
        range(len(chart.groups)),
        chart.groups,
        fontsize=8,
        rotation=35 if slanted else 0,
        ha="right" if slanted else "center",
    )
    axes.set_ylabel(chart.y_label)
