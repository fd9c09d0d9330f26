"""What a person sees: the human view on stderr, machine-readable lines on stdout.

The only module that prints. Rich is loaded when something is shown, not when it is imported.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer
    from rich.console import Console, RenderableType

PLAIN_WIDTH = 120
ORIGINS = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT": "default"}


def stderr() -> Console:
    """The console of the human view; made per call so that a redirected stderr is honoured."""
    from rich.console import Console

    view = Console(stderr=True, highlight=False)
    if not view.is_terminal:
        # A file or pipe has no width of its own; tables need room.
        view.width = PLAIN_WIDTH
    return view


def out(text: str) -> None:
    """One line on stdout."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def emit_json(record: dict[str, Any]) -> None:
    """The record as one line of standard JSON on stdout; NaN and infinities become null."""
    out(json.dumps(finite(record), ensure_ascii=False, allow_nan=False))


def finite(value: Any) -> Any:
    """`value` with every float that JSON cannot write replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def say(message: RenderableType) -> None:
    """A line of the human view; markup is read."""
    stderr().print(message)


def note(message: str) -> None:
    """A remark of the human view, in grey; markup is not read."""
    stderr().print(message, style="dim", markup=False)


def show_error(cause: str, remedy: str) -> None:
    """What is wrong, and what to do about it: a panel on a terminal, else one line each."""
    view = stderr()
    if not view.is_terminal:
        sys.stderr.write(f"Error: {cause.strip()}\nFix: {remedy.strip()}\n")
        return
    from rich.panel import Panel
    from rich.text import Text

    text = Text(cause.strip())
    text.append(f"\n{remedy.strip()}", style="dim")
    view.print(Panel(text, title="Error", title_align="left", border_style="red"))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """A table of the human view; the first `left` columns are left-aligned, the others right."""
    from rich.table import Table
    from rich.text import Text

    view = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for place, name in enumerate(columns):
        view.add_column(name, justify="left" if place < left else "right", no_wrap=place == 0)
    for row in rows:
        view.add_row(*(Text(cell) for cell in row))
    stderr().print(view)


def number(value: float | int | None, digits: int = 2) -> str:
    """A number for a table cell; a dash where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def origins(ctx: typer.Context) -> dict[str, str]:
    """Where each option's value came from: flag, environment or default."""
    found: dict[str, str] = {}
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        found[name] = ORIGINS.get(source.name if source else "", "default")
    return found


def integers(text: str, option: str) -> list[int]:
    """A comma list of integers, as in `1,8,32`; raises UsageError that names the option."""
    from recguide_core.errors import UsageError

    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} is '{text}', which is not a comma list of whole numbers.",
            f"Write it like: {option} 1,8,32",
        ) from None
    return values


def decimals(text: str, option: str) -> list[float]:
    """A comma list of numbers, as in `0.5,2`; raises UsageError that names the option."""
    from recguide_core.errors import UsageError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} is '{text}', which is not a comma list of numbers.",
            f"Write it like: {option} 0.5,2",
        ) from None


def names(text: str, option: str) -> list[str]:
    """A comma list of names without empty parts; raises UsageError that names the option."""
    from recguide_core.errors import UsageError

    values = [part.strip() for part in text.split(",")]
    if not all(values):
        raise UsageError(
            f"{option} is '{text}', which has an empty entry.", "Separate names by single commas."
        )
    return values
