"""Options of `bench` as settings of a simulation; what `--simulate`, `paper` and `plan` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recguide_cli import console

if TYPE_CHECKING:
    from recguide_core.bench.suites.report import SuiteReport
    from recguide_core.policy.host import HostTime
    from recguide_core.simulator import SimSettings

DEFAULTS = {
    "model": "nld-8b",
    "methods": "ar,linear,adaptive,recguide",
    "block_size": "8,16,32",
    "concurrency": "1,2,4,8,16,32,64,128",
    "max_tokens": 256,
}
"""What a simulation takes where a measured run takes something else."""


def _single(options: dict[str, Any], name: str) -> float | None:
    """One number from an option that takes several outside of simulation."""
    from recguide_core.errors import UsageError

    text = options[name]
    if text is None:
        return None
    values = console.decimals(text, f"--{name}")
    if len(values) != 1:
        raise UsageError(f"--{name} is '{text}'.", "A simulation takes one number there.")
    return values[0]


def given(options: dict[str, Any], name: str) -> bool:
    """Whether the option was typed or came from the environment."""
    return bool(options["origins"].get(name, "default") != "default")


def chosen(options: dict[str, Any], name: str) -> Any:
    """The option as given, else the simulation's default."""
    return options[name] if given(options, name) else DEFAULTS[name]


def settings_of(options: dict[str, Any]) -> SimSettings:
    """Settings of a simulation; raises UsageError like the core."""
    from recguide_core.simulator import SimSettings

    return SimSettings(
        gpu=options["gpu"],
        model=chosen(options, "model"),
        methods=tuple(console.names(chosen(options, "methods"), "--methods")),
        block_sizes=tuple(console.integers(chosen(options, "block_size"), "--block-size")),
        concurrency=tuple(console.integers(chosen(options, "concurrency"), "--concurrency")),
        requests=options["requests"],
        max_tokens=chosen(options, "max_tokens"),
        prompt_tokens=options["prompt_tokens"],
        seed=options["seed"],
        batching=options["batching"],
        waiting=options["waiting"],
        rate=_single(options, "rate"),
        ramp=_single(options, "ramp"),
        host=host_of(options["host"]),
        traces=None if options["traces"] is None else str(options["traces"]),
    )


def host_of(text: str) -> HostTime:
    """`none`, `serving`, or milliseconds a step and a request, as in `2.5,0.1`."""
    from recguide_core.errors import UsageError
    from recguide_core.policy.host import NO_HOST, HostTime
    from recguide_core.simulator import SERVING_HOST

    named = {"none": NO_HOST, "serving": SERVING_HOST}
    if text in named:
        return named[text]
    try:
        step, request = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--host is '{text}'.", "Write none, serving, or two numbers such as 2.5,0.1."
        ) from None
    if min(step, request) < 0:
        raise UsageError(f"--host is '{text}'.", "Milliseconds are not negative.")
    return HostTime(step, request)


def show(report: SuiteReport, folder: Path | None) -> dict[str, Any]:
    """Show a suite's tables, save it where a folder was named, and return its record."""
    for table in report.tables:
        rows = [[row.label, *(cell.text(table.form) for cell in row.cells)] for row in table.rows]
        console.table(table.title, ["", *table.columns], rows)
        if table.text:
            console.note(table.text + "\n")
    record = report.as_record()
    if folder is not None:
        from recguide_core.tables import write_json, write_whole

        text = report.markdown().encode()
        write_whole(folder / f"{report.suite}.md", lambda stream: _write(stream, text))
        write_json(folder / f"{report.suite}.json", console.finite(record))
        console.note(f"Saved in {folder}")
    return record


def _write(stream: Any, text: bytes) -> None:
    stream.write(text)
