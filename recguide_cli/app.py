"""The `recguide` command: registers the commands and turns errors into exit codes.

Knows which commands exist and nothing of what they do. The command modules import only typer
and the console at the top, so `recguide --help` never loads torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from recguide_cli import console
from recguide_core.errors import EXIT_USAGE, RecGuideError

COMMANDS = ("bench", "profile", "calibrate", "tune", "serve", "doctor")


class RecGuideGroup(TyperGroup):
    """A command group that shows every user error as one line of cause and one of remedy."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except RecGuideError as error:
            console.show_error(error.cause, error.remedy)
            code = error.exit_code
        except typer.Abort:
            console.show_error("Interrupted.", "Rows of finished requests are already saved.")
            code = 130
        except Exception as error:
            code = _parser_error(error, prog_name or "recguide")
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _parser_error(error: Exception, prog_name: str) -> int:
    """Shows what the option parser refused; anything else is a bug and is raised again."""
    if not hasattr(error, "format_message"):
        raise error
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else prog_name
    console.show_error(error.format_message(), f"See '{path} --help'.")
    return int(getattr(error, "exit_code", EXIT_USAGE))


app = typer.Typer(
    name="recguide",
    cls=RecGuideGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            console.out(version("recguide"))
        except PackageNotFoundError:
            from recguide_core import __version__

            console.out(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Runs self-speculative language models: predictive overlap and adaptive drafting.

    The chain: profile -> calibrate -> tune -> serve or bench. Start with: recguide bench
    """
    if ctx.invoked_subcommand is None:
        console.out(ctx.get_help())


def _register() -> None:
    for name in COMMANDS:
        module = f"recguide_cli.commands.{name}"
        if importlib.util.find_spec(module) is not None:
            app.command(name)(importlib.import_module(module).run)


_register()


def main() -> None:
    """Entry point of the console script."""
    app()
