"""What a chart shows: numbers and labels, without a way to draw them (svg.py, png.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line; `notes` are the hover texts, one a point."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axes:
    """Labels and kinds of the two axes."""

    x: str
    y: str
    log_x: bool = False
    top: float | None = None


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines with a mark at every point (`marks`) or without."""

    title: str
    series: Sequence[Series]
    axes: Axes
    marks: bool = True


@dataclass(frozen=True, slots=True)
class BarChart:
    """Stacked bars: one bar a group, one colour a stack (label and a value for each group)."""

    title: str
    groups: Sequence[str]
    stacks: Sequence[tuple[str, Sequence[float]]]
    y_label: str


Chart: TypeAlias = LineChart | BarChart
