"""The options `--engine` and `--tp` of the commands that measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def measuring_engine(engine: str, tp: int) -> str:
    """Check the engine that a command is to measure with.

    Raises:
        UsageError: no such engine, or an option that it does not have.
        RecGuideError: SGLang is asked for and missing. MismatchError: it is of another release.
    """
    from recguide_core.calibration.settings import EMBEDDED, SGLANG
    from recguide_core.errors import UsageError, nearest

    if engine not in (EMBEDDED, SGLANG):
        raise UsageError(f"Unknown engine '{engine}'.", nearest(engine, (EMBEDDED, SGLANG)))
    if tp < 1:
        raise UsageError(f"--tp is {tp}.", "--tp must be at least 1.")
    if engine == EMBEDDED:
        if tp != 1:
            raise UsageError(
                "--tp is for SGLang, and the embedded engine was chosen.",
                "Leave it out, or use --engine sglang.",
            )
        return engine
    from recguide_core.sglang_plugin.versions import check_version, installed_version

    check_version(installed_version())
    return engine


def dtype_for(ctx: typer.Context, engine: str) -> str:
    """The option --dtype; SGLang takes the checkpoint's own where nothing was said."""
    from recguide_cli import console
    from recguide_core.calibration.settings import SGLANG

    given: str = ctx.params["dtype"]
    return "auto" if engine == SGLANG and console.origins(ctx)["dtype"] == "default" else given
