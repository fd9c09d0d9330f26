"""From settings to executor and planner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import NEEDS_GUIDANCE, Planner
from recguide_core.sglang_plugin.row_cache import RowCache
from recguide_core.sglang_plugin.settings import PluginSettings


def build_executor(
    settings: PluginSettings, module: Any, cache: RowCache, runner: Any
) -> Any:
    """The executor of the layout."""
    from recguide_core.sglang_plugin.executors import FlatExecutor

    del settings, runner
    return FlatExecutor(module, cache)


def build_planner(
    settings: PluginSettings, folder: Path, device: str
) -> tuple[Planner, list[str]]:
    """The planner of the method, and notes on what `auto` chose."""
    del folder, device
    method = settings.method
    if method == "auto":
        method = "overlap"
    assert method not in NEEDS_GUIDANCE
    return make_planner(method, settings.block), []
