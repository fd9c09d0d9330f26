"""Charts as SVG text: lines over an axis, and stacked bars. Knows numbers and labels only.

Colours are CSS variables with a light and a dark value, so a chart follows the page or, opened
alone, the reader's system. Every mark carries a title that shows on hover.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from html import escape

from recguide_core.bench.report.chart import Axes, BarChart, Chart, LineChart, Series

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 54, 46
SERIES = 8
LEGEND_COLUMNS = 4
DASHES = ("", "6 3", "2 3")

STYLE = """
.rg{--ink:#1f2430;--soft:#5c6473;--grid:#e3e6ec;--s0:#2563c9;--s1:#d9541e;--s2:#0f8a6d;--s3:#a23bb0;
--s4:#b98900;--s5:#3f9bd8;--s6:#c92a55;--s7:#6b7280;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.rg{--ink:#e8eaf0;--soft:#a2a9b8;--grid:#333a48;--s0:#7aa9ff;
--s1:#ff9b6b;--s2:#4fd0b0;--s3:#dc8fe6;--s4:#e6c04d;--s5:#84cbf6;--s6:#ff86a6;--s7:#b3b9c6}}
.rg text{fill:var(--ink)}.rg .soft{fill:var(--soft)}.rg .grid{stroke:var(--grid);stroke-width:1}
.rg .axis{stroke:var(--soft);stroke-width:1}.rg .line{fill:none;stroke-width:2}
"""


def draw(chart: Chart) -> str:
    """The chart as SVG text."""
    return _line_chart(chart) if isinstance(chart, LineChart) else _bar_chart(chart)


def _line_chart(chart: LineChart) -> str:
    series, axes = chart.series, chart.axes
    xs = [v for s in series for v in s.x]
    ys = [v for s in series for v in s.y]
    x_ticks = log_ticks(min(xs), max(xs)) if axes.log_x else nice_ticks(min(xs), max(xs))
    y_ticks = nice_ticks(0.0, axes.top or max(ys))
    across = _scale(x_ticks, LEFT, WIDTH - RIGHT, axes.log_x)
    up = _scale(y_ticks, HEIGHT - BOTTOM, TOP, False)
    body = [*_frame(x_ticks, y_ticks, across, up, axes)]
    for number, line in enumerate(series):
        colour = f"var(--s{number % SERIES})"
        points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = DASHES[number // SERIES % len(DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        body.append(f'<polyline class="line" points="{path}" stroke="{colour}"{dashed}/>')
        if chart.marks:
            body += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">'
                f"<title>{escape(_note(line, i))}</title></circle>"
                for i, (x, y) in enumerate(points)
            ]
    return _svg(chart.title, body, [line.label for line in series])


def _bar_chart(chart: BarChart) -> str:
    groups, stacks = chart.groups, chart.stacks
    totals = [sum(values[i] for _, values in stacks) for i in range(len(groups))]
    y_ticks = nice_ticks(0.0, max(totals, default=1.0) or 1.0)
    up = _scale(y_ticks, HEIGHT - BOTTOM, TOP, False)
    body = [*_frame([], y_ticks, lambda x: x, up, Axes("", chart.y_label))]
    room = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    wide = min(room * 0.7, 90.0)
    upright = max(map(len, groups), default=0) * 7 < room
    for place, group in enumerate(groups):
        middle = LEFT + room * (place + 0.5)
        base = 0.0
        for number, (label, values) in enumerate(stacks):
            value = values[place]
            if value <= 0:
                continue
            y = up(base + value)
            body.append(
                f'<rect x="{middle - wide / 2:.1f}" y="{y:.1f}" width="{wide:.1f}" '
                f'height="{up(base) - y:.1f}" fill="var(--s{number % SERIES})">'
                f"<title>{escape(f'{group}, {label}: {short(value)}')}</title></rect>"
            )
            base += value
        body.append(_group_label(middle, group, upright))
    deeper = 0 if upright else 4 * max(map(len, groups))
    return _svg(chart.title, body, [label for label, _ in stacks], deeper)


def _group_label(x: float, text: str, upright: bool) -> str:
    y = HEIGHT - BOTTOM + 16
    if upright:
        return f'<text class="soft" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'
    return (
        f'<text class="soft" x="{x:.1f}" y="{y}" font-size="10" text-anchor="end" '
        f'transform="rotate(-40 {x:.1f} {y})">{escape(text)}</text>'
    )


def _note(line: Series, place: int) -> str:
    if line.notes:
        return f"{line.label}: {line.notes[place]}"
    return f"{line.label}: {short(line.x[place])}, {short(line.y[place])}"


def _svg(title: str, body: Sequence[str], labels: Sequence[str], deeper: int = 0) -> str:
    """The chart with its legend above; `deeper` is more room below, for slanted labels."""
    legend = []
    for number, label in enumerate(labels):
        x = LEFT + (number % LEGEND_COLUMNS) * (WIDTH - LEFT - RIGHT) / LEGEND_COLUMNS
        y = 14 + 16 * (number // LEGEND_COLUMNS)
        legend.append(
            f'<rect x="{x:.0f}" y="{y - 8}" width="10" height="10" rx="2" '
            f'fill="var(--s{number % SERIES})"/>'
            f'<text x="{x + 15:.0f}" y="{y + 1}" font-size="11">{escape(label)}</text>'
        )
    lift = max(0, 16 * (math.ceil(len(labels) / LEGEND_COLUMNS) - 2))
    view = f"0 {-lift} {WIDTH} {HEIGHT + lift + deeper}"
    legend = [f'<g transform="translate(0 {-lift})">', *legend, "</g>"]
    return (
        f'<svg class="rg" xmlns="http://www.w3.org/2000/svg" viewBox="{view}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>'
        + "".join([*body, *legend])
        + "</svg>"
    )


def _frame(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    across: Callable[[float], float],
    up: Callable[[float], float],
    axes: Axes,
) -> list[str]:
    low, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y_ticks:
        y = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_tick(LEFT - 8, y + 4, "end", tick))
    for tick in x_ticks:
        x = across(tick)
        parts.append(_tick(x, low + 18, "middle", tick))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{low}" y2="{low}"/>')
    middle = (TOP + low) / 2
    parts.append(
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(axes.x)}</text>"
    )
    parts.append(
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.0f})">{escape(axes.y)}</text>'
    )
    return parts


def _tick(x: float, y: float, anchor: str, value: float) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="soft" {where}>{short(value)}</text>'


def _scale(
    ticks: Sequence[float], start: float, end: float, logarithmic: bool
) -> Callable[[float], float]:
    low, high = ticks[0], ticks[-1]
    if logarithmic:
        span = math.log(high / low) or 1.0
        return lambda v: start + (end - start) * math.log(v / low) / span
    span = (high - low) or 1.0
    return lambda v: start + (end - start) * (v - low) / span


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that cover [low, high], about `count` steps of 1, 2 or 5 times a power of 10."""
    # A span below the smallest normal number has no power of ten to step by, and one in the last
    # digits of its ends has no round values that tell them apart.
    least = sys.float_info.min * 1e3
    if high - low < max(least, 1e-9 * max(abs(low), abs(high))):
        high = low + (abs(low) if abs(low) > least else 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of two that cover [low, high], low > 0; at least two."""
    first, last = math.floor(math.log2(low) + 1e-9), math.ceil(math.log2(high) - 1e-9)
    return [2.0**i for i in range(first, max(last, first + 1) + 1)]


def short(value: float) -> str:
    """A number in few characters: 12,300 or 0.25."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
