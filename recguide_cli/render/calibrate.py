"""The human view of a calibration: progress, V_B(s, z), and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recguide_cli import console
from recguide_core.calibration.fitting import Fitted
from recguide_core.calibration.plot import available, save_value_plot
from recguide_core.calibration.run import Written


@contextmanager
def watch() -> Iterator[Callable[[int, int], None]]:
    """A progress bar over requests."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("shadow rounds"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, Remaining(), console=console.stderr(), transient=True) as bar:
        task = bar.add_task("requests", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(fitted: Fitted, where: Written) -> Path | None:
    """Print the tables; returns the plot's path, None without matplotlib."""
    report = fitted.report
    menu = report["menu"]
    console.say(
        f"{report['rounds']:,} rounds of {report['requests']} requests "
        f"({', '.join(report['data'])}), model {report['model']} {report['model_hash']}"
    )
    rows = [[*_value_row(row)] for row in report["value"]]
    mean = [console.number(report["accepted"][b]) for b in menu]
    full = [f"{100 * report['full'][b]:.0f} %" for b in menu]
    rows.append(["mean accepted length A", console.number(report["rounds"]), *mean])
    rows.append(["fully accepted blocks", "", *full])
    console.table(
        "V_B(s, z): expected accepted tokens, least to most certain bin",
        ("history z", "rounds", *(f"B = {b}" for b in menu)),
        rows,
    )
    _quality(report)
    plot = None
    if available():
        plot = where.value.with_suffix("").with_suffix(".value.png")
        save_value_plot(fitted.lookup, plot, f"V_B(s, z) of {report['model']}")
    else:
        console.note('No plot: matplotlib is missing (install "recguide[plots]").')
    for path in (where.trace, where.value, where.branch, plot):
        if path is not None:
            console.note(f"Saved {path}")
    return plot


def _value_row(row: dict[str, Any]) -> list[str]:
    cells = [
        console.number(high) if low == high else f"{low:.2f} – {high:.2f}"
        for low, high in zip(row["uncertain"], row["certain"], strict=True)
    ]
    return [row["history"], console.number(row["rounds"]), *cells]


def _quality(report: dict[str, Any]) -> None:
    console.table(
        "Held out: is the larger block worth it (at least 5 tokens more)?",
        ("pair", "how often", "AUROC"),
        [
            (
                f"{w['large']} over {w['small']}",
                f"{100 * w['rate']:.1f} %",
                console.number(w["auroc"], 3),
            )
            for w in report["worth"]
        ],
    )
    reliable = report["reliability"]
    console.table(
        "Held out: predicted against observed survival P(A ≥ k)",
        ("predicted", "observed", "cases"),
        [
            (console.number(p, 3), console.number(o, 3), console.number(int(n)))
            for p, o, n in zip(
                reliable["predicted"], reliable["observed"], reliable["count"], strict=True
            )
            if n
        ],
    )
    console.note(f"Mean absolute error of survival {reliable['error']:.3f}.")
