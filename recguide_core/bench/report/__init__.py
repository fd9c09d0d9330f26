"""The report of a saved run: figures as SVG with their data as CSV, and one HTML page."""

from __future__ import annotations

from recguide_core.bench.report.write import write_report

__all__ = ["write_report"]
