"""A suite's report: tables of cells, ours beside the published, with a paragraph each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table.

    Attributes:
        ours: our value; published: the paper's, None where it gives none.
        fitted: ours was fitted to it, so that agreement says nothing.
    """

    ours: float | None
    published: float | None = None
    fitted: bool = False

    @property
    def deviation(self) -> float | None:
        """(ours - published) / published."""
        if self.ours is None or not self.published:
            return None
        return self.ours / self.published - 1.0

    def text(self, form: str) -> str:
        """`ours / published (deviation)`, with a word where ours was fitted to it."""
        if self.ours is None:
            return "-"
        out = format(self.ours, form)
        if self.published is None:
            return out
        mark = "fitted " if self.fitted else ""
        return f"{out} / {format(self.published, form)} ({mark}{self.deviation or 0.0:+.0%})"


@dataclass(frozen=True, slots=True)
class Row:
    """A labelled row of cells."""

    label: str
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class SuiteTable:
    """A table with its paragraph.

    Attributes:
        form: number format of the cells, e.g. `.2f`.
        text: what agrees, what does not, and the likely reason.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    form: str = ".2f"
    text: str = ""

    def deviations(self) -> list[float]:
        """Of all predicted cells that have a published value."""
        cells = (cell for row in self.rows for cell in row.cells)
        found = (cell.deviation for cell in cells if not cell.fitted)
        return [d for d in found if d is not None]

    def worst(self) -> float:
        """Largest absolute deviation of a predicted cell; 0 without any."""
        return max((abs(d) for d in self.deviations()), default=0.0)

    def median(self) -> float:
        """Median absolute deviation of the predicted cells; 0 without any."""
        ordered = sorted(abs(d) for d in self.deviations())
        return ordered[len(ordered) // 2] if ordered else 0.0

    def as_record(self) -> dict[str, Any]:
        """As JSON writes it."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [
                {
                    "label": row.label,
                    "cells": [
                        {
                            "ours": cell.ours,
                            "published": cell.published,
                            "deviation": cell.deviation,
                            "fitted": cell.fitted,
                        }
                        for cell in row.cells
                    ],
                }
                for row in self.rows
            ],
            "text": self.text,
        }

    def markdown(self) -> str:
        """The table and its paragraph as Markdown."""
        head = f"| {' | '.join(('', *self.columns))} |"
        rule = "|---|" + "---:|" * len(self.columns)
        body = [
            f"| {row.label} | {' | '.join(cell.text(self.form) for cell in row.cells)} |"
            for row in self.rows
        ]
        return "\n".join([f"### {self.title}", "", head, rule, *body, "", self.text, ""])


@dataclass(slots=True)
class SuiteReport:
    """A whole suite: its name, tables, and what it was run with."""

    suite: str
    tables: list[SuiteTable]
    about: dict[str, Any] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """The `recguide.suite/1` record."""
        return {
            "schema": "recguide.suite/1",
            "suite": self.suite,
            "tables": [table.as_record() for table in self.tables],
            "run": self.about,
        }

    def markdown(self) -> str:
        """The report as Markdown."""
        return "\n".join(
            [f"## Suite `{self.suite}`", "", *(table.markdown() for table in self.tables)]
        )
