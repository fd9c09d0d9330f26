"""From settings to the executor of a layout and the planner of a method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recguide_core.engine.guidance import Guidance
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import NEEDS_GUIDANCE, Planner
from recguide_core.errors import DataError
from recguide_core.inventory import short_gpu_name
from recguide_core.model.weights import content_hash
from recguide_core.sglang_plugin.fallback import judge_layout
from recguide_core.sglang_plugin.settings import PluginSettings
from recguide_core.tuning.guidance import Tuned, load_tuned

WITHOUT_TABLES = "overlap"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a server decodes with.

    Attributes:
        planners: by method name, the default first.
        positions: decisions that e_t averages over; notes: one line each, for the log.
    """

    planners: dict[str, Planner]
    positions: int
    notes: list[str]


def choose_planners(settings: PluginSettings, folder: Path, device: str, requests: int) -> Chosen:
    """The planners of the methods; `auto` looks at the layout and at what was tuned.

    Args:
        folder: the checkpoint's; device: torch device of the server; requests: its nominal C.

    Raises:
        RecGuideError: the method needs tables that are missing or do not fit.
    """
    tuned = _tuned(settings, folder, device)
    guidance = None if tuned is None else tuned.guidance
    notes = [] if tuned is None else list(tuned.notes)
    method, block = settings.method, settings.block
    if method == "auto":
        method, block, note = _automatic(settings, guidance, requests)
        notes.append(note)
    positions = settings.entropy_positions if tuned is None else tuned.positions
    names = dict.fromkeys((method, *settings.also))
    planners = {}
    for name in names:
        tables = None if settings.paper_rule and name not in NEEDS_GUIDANCE else guidance
        planners[name] = make_planner(name, block, tables, settings.batching)
    return Chosen(planners, positions, notes)


def _tuned(settings: PluginSettings, folder: Path, device: str) -> Tuned | None:
    try:
        return load_tuned(
            settings.model or folder.name,
            content_hash(folder),
            settings.device or _table_device(device),
            policy=None if settings.policy is None else Path(settings.policy),
            force=settings.force,
            engine="sglang",
        )
    except DataError:
        if settings.policy is not None or NEEDS_GUIDANCE & {settings.method, *settings.also}:
            raise
        return None


def _table_device(device: str) -> str:
    """How tables name a torch device."""
    if not device.startswith("cuda"):
        return device
    import torch

    return short_gpu_name(torch.cuda.get_device_name(device))


def _automatic(
    settings: PluginSettings, guidance: Guidance | None, requests: int
) -> tuple[str, int | None, str]:
    """Method, block and the reason for both."""
    if settings.layout == "flat":
        if guidance is not None:
            return "recguide", None, "auto: recguide, by the policy found."
        return (
            WITHOUT_TABLES,
            settings.block,
            f"auto: {WITHOUT_TABLES}, since no policy was found; `recguide tune` makes one.",
        )
    if guidance is None:
        return (
            "linear:recipe",
            None,
            f"auto: the published recipe, since the {settings.layout} layout is in use and no "
            "policy was found.",
        )
    verdict = judge_layout(guidance, settings.load or requests, settings.layout)
    rates = f"{verdict.fixed:.2f} against {verdict.adaptive:.2f} tokens/ms by the cost table"
    if verdict.prefers_fixed:
        return (
            "linear",
            verdict.block,
            f"auto: fixed blocks of {verdict.block} ({rates}, {settings.layout} layout).",
        )
    return "recguide", None, f"auto: recguide ({rates}, {settings.layout} layout)."
