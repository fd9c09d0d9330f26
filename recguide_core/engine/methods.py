"""From a method's name to its planner. No torch."""

from __future__ import annotations

from recguide_core.engine.guidance import Guidance
from recguide_core.engine.planners import (
    DEFAULT_BLOCK,
    NEEDS_GUIDANCE,
    ArPlanner,
    LinearPlanner,
    Planner,
    check_method,
)
from recguide_core.engine.planners_adaptive import AdaptivePlanner
from recguide_core.engine.planners_drafter import DrafterPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner, TidarPlanner
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.errors import UsageError


def make_planner(
    name: str,
    block: int | None = None,
    guidance: Guidance | None = None,
    batching: str = "ragged",
    *,
    learning: bool = True,
) -> Planner:
    """The planner of a method.

    Args:
        name: one of `planners.METHODS`.
        block: B of linear, tidar, dflash and overlap (default 16); others ignore it.
        guidance: tables of adaptive and recguide; overlap takes its rule from it when given.
        batching: how steps are formed; the adaptive methods price blocks accordingly.
        learning: whether recguide follows its traffic or stays with the tables.

    Raises:
        UsageError: unknown method, block out of range, or an adaptive method without tables.
    """
    check_method(name)
    if name in NEEDS_GUIDANCE:
        if guidance is None:
            raise UsageError(
                f"The method '{name}' needs value and cost tables, and none were found.",
                "Run `recguide profile`, `recguide calibrate` and `recguide tune` first.",
            )
        if name == "adaptive":
            return AdaptivePlanner(guidance, batching)
        return RecGuidePlanner(guidance, batching, learning=learning)
    size = DEFAULT_BLOCK if block is None else block
    if name == "ar":
        return ArPlanner()
    if name == "linear:recipe":
        return LinearPlanner(None)
    if name == "linear":
        return LinearPlanner(size)
    if name == "tidar":
        return TidarPlanner(size)
    if name == "dflash":
        return DrafterPlanner(size)
    return OverlapPlanner(size, None if guidance is None else guidance.rule)
