"""Measuring T, the time of a forward, into a cost table; and taking over measured JSON."""

from __future__ import annotations

from recguide_core.profiling.grid import Point, default_grid
from recguide_core.profiling.imported import import_report
from recguide_core.profiling.run import ProfileSettings, profile

__all__ = ["Point", "ProfileSettings", "default_grid", "import_report", "profile"]
