"""`recguide serve` through SGLang: shows what was resolved, then becomes SGLang's server."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from recguide_cli import console

if TYPE_CHECKING:
    from recguide_core.sglang_plugin.settings import PluginSettings


def engine_for(asked: str, model: str) -> str:
    """The engine to serve with; says why when it was chosen automatically."""
    from recguide_core.sglang_plugin.launch import choose_engine

    engine, reason = choose_engine(asked, model)
    if asked == "auto":
        console.note(f"engine {engine}: {reason}")
    return engine


def plugin_settings(
    method: str,
    block: int | None,
    layout: str,
    policy: Path | None,
    force: bool,
    drafter: Path | None,
) -> PluginSettings:
    """Settings of the plugin; with a drafter SGLang's own DFLASH decodes and they matter not."""
    from recguide_core.errors import UsageError
    from recguide_core.sglang_plugin.settings import PluginSettings

    if drafter is not None and method not in ("auto", "dflash"):
        raise UsageError(
            f"--drafter and --method {method} exclude each other.",
            "Leave one out: a drafter means --method dflash.",
        )
    return PluginSettings(
        method="auto" if drafter is not None else method,
        block=block,
        layout=layout,
        policy=None if policy is None else str(policy),
        force=force,
    )


def serve_sglang(**options: Any) -> NoReturn:
    """Replace this process by SGLang's server; options: of `sglang_plugin.launch.ServerConfig`."""
    from recguide_core.sglang_plugin.launch import ServerConfig, server_command

    settings = Path(tempfile.mkdtemp(prefix="recguide-")) / "sglang.json"
    command = server_command(ServerConfig(**options), settings)
    for note in command.notes:
        console.note(note)
    console.note(f"settings: {settings}")
    os.execvpe(command.argv[0], command.argv, {**os.environ, **command.env})


def refuse_sglang_options(
    flags: list[str] | None, layout: str, drafter: Path | None, tp: int, dp: int
) -> None:
    """What only SGLang can do must not be dropped silently by the embedded engine."""
    from recguide_core.errors import UsageError

    given = [
        *(flags or [])[:1],
        *(["--layout"] if layout != "flat" else []),
        *(["--drafter"] if drafter is not None else []),
        *(["--tp"] if tp != 1 else []),
        *(["--dp"] if dp != 1 else []),
    ]
    if given:
        raise UsageError(
            f"{given[0]} is for SGLang, and the embedded engine was chosen.",
            "Leave it out, or use --engine sglang.",
        )


def embedded_device(device: str, dtype: str) -> tuple[str, str]:
    """Device and dtype of the embedded engine; it takes a GPU only when told to."""
    device = "cpu" if device == "auto" else device
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype
