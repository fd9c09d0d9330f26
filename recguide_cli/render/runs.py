"""The human view of jobs on saved runs: the lossless check and the comparison of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recguide_cli import console


def check(folder: Path, model: str | None, *, bitwise: bool = False) -> dict[str, Any]:
    """Check a saved run and show what came of it; `bitwise` asks for a run that kept its bits."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from recguide_core.bench.recheck import FILE, check_run

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=console.stderr(), transient=True) as progress:
        task = progress.add_task("replaying AR", total=None)
        record = check_run(
            folder,
            model,
            lambda done, total: progress.update(task, completed=done, total=total),
            bitwise=bitwise,
        )
    counts = record["counts"]
    console.say(
        f"{folder}: {counts['exact']} exact, {counts['near-tie']} near-ties, "
        f"{counts['different']} different"
    )
    if record["bitwise"]:
        console.say(bitwise_line(record["bitwise"]))
    if record["differences"]:
        console.table(
            "Where the texts part",
            ("request", "prompt", "verdict", "token", "AR", "got", "below the best"),
            [_difference(d) for d in record["differences"]],
            left=3,
        )
    console.note(f"Saved in {folder / FILE}")
    return record


def bitwise_line(counts: dict[str, int]) -> str:
    """What a comparison bit for bit found."""
    same = counts["outputs"] - counts["differing"]
    return (
        f"bit for bit: {same} of {counts['outputs']} outputs, {counts['tokens']} tokens with the "
        "log-probabilities of the best 8"
    )


def _difference(found: dict[str, Any]) -> list[str]:
    gap = found["gap"]
    return [
        found["key"],
        found["prompt_id"],
        found["verdict"],
        str(found["position"]),
        str(found["expected"]),
        str(found["got"]),
        "–" if gap is None else f"{gap:.2g}",
    ]


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Compare two saved runs and show the ratios."""
    from recguide_core.bench.compare import compare_runs

    record = compare_runs(first, second)
    for cell in record["rows"]:
        console.table(
            f"{cell['cell']}: {second} against {first}, {cell['requests'][1]} requests, "
            f"{'paired' if cell['paired'] else 'unpaired'}",
            ("metric", "first", "second", "ratio", "95 % interval", "verdict"),
            [_metric(name, found) for name, found in cell["metrics"].items()],
        )
    for name, values in record["changed_settings"].items():
        console.note(f"{name}: {values[0]} in the first, {values[1]} in the second")
    if record["only_in_one"]:
        console.note(f"In one run only: {', '.join(record['only_in_one'])}")
    return record


def _metric(name: str, found: dict[str, Any]) -> list[str]:
    left, right = found["values"]
    interval = found["interval"]
    span = "–" if interval is None else f"{interval[0]:.3f} .. {interval[1]:.3f}"
    return [
        name,
        console.number(left),
        console.number(right),
        console.number(found["ratio"], 3),
        span,
        found["verdict"],
    ]
