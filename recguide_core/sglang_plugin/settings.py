"""Settings of the plugin, handed to SGLang's processes as one JSON file. No SGLang, no torch.

SGLang takes no options of a plugin, so `recguide serve` writes this file and names it in the
environment variable `RECGUIDE_SGLANG_CONFIG`; every process of the server reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from recguide_core.engine.planners import METHODS, check_block
from recguide_core.errors import DataError, UsageError, nearest
from recguide_core.records import MAX_BLOCK

VARIABLE = "RECGUIDE_SGLANG_CONFIG"
LAYOUTS = ("flat", "uniform", "bucketed")
"""How a step's rows reach the device: one ragged forward over the row table; padded to one width
with a mask, through SGLang's stock attention; or one (act, block) bucket a forward."""
METHOD_CHOICES = ("auto", *METHODS)


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """What `RECGUIDE_SGLANG_CONFIG` says.

    Attributes:
        method: a decoding method, or `auto`; block: B of the methods that take one.
        also: methods that a request may ask for besides, through `custom_params`:
            {"method": ..., "block_size": ...}.
        layout: see `LAYOUTS`.
        model: name under which tables are looked for (an alias such as nld-8b); device: likewise
            (b200, cpu); both default to what the server itself runs.
        policy: policy file; None looks for the model's. force: accept one that does not fit.
        entropy_positions: decisions that e_t averages over.
        graphs: capture CUDA graphs (ignored without CUDA).
        trace: file that gets one JSON line per round, for replays; None = none.
        load: nominal concurrency that planners plan for, 0 = the requests of the step.
        paper_rule: overlap branches by the paper's rule, whatever the policy found says.
        probe: job file of a measurement that runs before the server takes requests (`probe`).
    """

    method: str = "auto"
    block: int | None = None
    also: tuple[str, ...] = ()
    layout: str = "flat"
    model: str | None = None
    device: str | None = None
    policy: str | None = None
    force: bool = False
    entropy_positions: int = MAX_BLOCK
    graphs: bool = True
    trace: str | None = None
    load: int = 0
    paper_rule: bool = False
    probe: str | None = None

    def __post_init__(self) -> None:
        for name in (self.method, *self.also):
            if name not in METHOD_CHOICES:
                raise UsageError(f"Unknown method '{name}'.", nearest(name, METHOD_CHOICES))
        if "dflash" in (self.method, *self.also):
            raise UsageError(
                "RecGuide's rows inside SGLang do not run the method 'dflash'.",
                "Give --drafter PATH: `recguide serve` then uses SGLang's own DFLASH.",
            )
        if self.layout not in LAYOUTS:
            raise UsageError(f"Unknown layout '{self.layout}'.", nearest(self.layout, LAYOUTS))
        if self.block is not None:
            check_block(self.block)
        if not 1 <= self.entropy_positions <= MAX_BLOCK:
            raise UsageError(
                f"entropy_positions is {self.entropy_positions}.",
                f"Choose from 1 to {MAX_BLOCK}.",
            )
        if self.layout != "flat" and "tidar" in (self.method, *self.also):
            raise UsageError(
                "The method 'tidar' needs the flat layout.",
                "Use --layout flat, or another method.",
            )

    @property
    def batching(self) -> str:
        """How steps are formed, as `EngineSettings.batching` spells it."""
        return "bucketed" if self.layout == "bucketed" else "ragged"


def settings_from(raw: Mapping[str, Any]) -> PluginSettings:
    """Settings from a JSON object.

    Raises:
        UsageError: an unknown key or an impossible value.
    """
    known = {f.name for f in fields(PluginSettings)}
    unknown = sorted(set(raw) - known)
    if unknown:
        raise UsageError(f"Unknown setting '{unknown[0]}'.", nearest(unknown[0], known))
    return PluginSettings(**{**raw, "also": tuple(raw.get("also", ()))})


def read_settings(path: Path) -> PluginSettings:
    """Read a settings file.

    Raises:
        DataError: missing or not JSON. UsageError: unknown key or value.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{VARIABLE} names {path}, which does not exist.",
            "Start the server with `recguide serve`, or name an existing file.",
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not JSON: {error}.", "Write it again.") from None
    if not isinstance(raw, dict):
        raise DataError(f"{path} holds no JSON object.", "Write it again.")
    return settings_from(raw)


def write_settings(path: Path, settings: PluginSettings) -> None:
    """Write a settings file that `read_settings` takes."""
    path.write_text(json.dumps(asdict(settings), indent=1, sort_keys=True) + "\n", encoding="utf-8")
