"""The human view of a tuning run: what was chosen, and what it gains or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recguide_cli import console

SHOWN_TRIALS = 6


@contextmanager
def watch() -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """A line that says what is running, and how far the recordings are."""
    with console.stderr().status("tuning") as status:
        yield (
            status.update,
            lambda done, total: status.update(f"recording texts, {done} of {total}"),
        )


def show(report: dict[str, Any], path: Path) -> None:
    """Print the choice, the loads and the gains."""
    _low_load(report)
    _loads(report)
    _methods(report)
    for measured in report["measured"]:
        console.say(verdict(measured, report["held_out"]))
    _served(report.get("served", ()))
    console.note(f"Saved {path}")


def _low_load(report: dict[str, Any]) -> None:
    rows = [
        (
            f"B = {t['block']}, {t['corrections']} corrections"
            f"{' + continuation' if t['continuation'] else ''}, delta {t['delta']:g}",
            console.number(t["accepted"]),
            f"{100 * t['reuse']:.1f} %",
            console.number(t["rows"]),
            console.number(1e3 * t["tokens_per_ms"], 0),
        )
        for t in report["low_load"][:SHOWN_TRIALS]
    ]
    console.table(
        "Lowest load: fixed block with overlap, from the trace",
        ("setting", "A", "reuse h", "branches", "tokens/s"),
        rows,
    )


def _loads(report: dict[str, Any]) -> None:
    rho = report["settings"]["rho"]
    rows = [
        (
            str(row["concurrency"]),
            console.number(row["rho"], 4),
            console.number(rho[str(row["concurrency"])], 4),
            " / ".join(f"{100 * share:.0f}" for share in row["shares"].values()),
            f"{100 * row['gain']:+.1f} % [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]",
        )
        for row in report["offline"]
    ]
    blocks = " / ".join(report["offline"][0]["shares"])
    console.table(
        "Adaptive drafting alone, out of fold: gain over the best fixed block",
        ("C", "rho out of fold", "on-policy", f"% of B = {blocks}", "gain [95 %]"),
        rows,
    )


def _methods(report: dict[str, Any]) -> None:
    names = list(report["measured"][0]["methods"])
    console.table(
        f"On-policy, clock {report['clock']}: tokens/s",
        ("C", *names, "reuse h"),
        [
            (
                str(m["concurrency"]),
                *(console.number(m["methods"][name], 0) for name in names),
                f"{100 * m['reuse']:.0f} %",
            )
            for m in report["measured"]
        ],
    )


def _served(loads: Sequence[dict[str, Any]]) -> None:
    """What the policy gains in a server, on the wall's clock."""
    if not loads:
        return
    names = list(loads[0]["methods"])
    console.table(
        "Through the SGLang server, clock wall: tokens/s (tau)",
        ("C", *names, "over the best"),
        [
            (
                str(m["concurrency"]),
                *(
                    f"{console.number(m['methods'][n], 0)} ({console.number(m['tau'][n])})"
                    for n in names
                ),
                "–" if m["over_best"] is None else f"{100 * m['over_best']:+.1f} %",
            )
            for m in loads
        ],
    )
    for m in loads:
        wrong = [n for n, text in m["lossless"].items() if text == "different"]
        if wrong or m["failed"]:
            console.say(
                f"C = {m['concurrency']}: {m['failed']} requests failed; texts that are not AR's: "
                f"{', '.join(wrong) or 'none'}."
            )


def verdict(measured: dict[str, Any], held_out: bool) -> str:
    """One line: the gain over the best fixed method and over the recipe, or that there is none."""
    best, recipe = measured["over_best"], measured["over_recipe"]
    text = (
        f"C = {measured['concurrency']}: {_interval(best)} over the best fixed "
        f"({measured['best']}), {_interval(recipe)} over the recipe ({measured['recipe']})"
    )
    if not best["sure"]:
        text += "; no sure gain over the best fixed method"
    return text + ("." if held_out else "; NOT held out: there were no fresh prompts.")


def _interval(gain: dict[str, Any]) -> str:
    low, high = 100 * gain["low"], 100 * gain["high"]
    return f"{100 * gain['gain']:+.1f} % ({low:+.1f} to {high:+.1f})"
