"""`recguide bench --simulate`: a load on a GPU, without the model and without the GPU."""

from __future__ import annotations

from typing import Any

from recguide_cli import console
from recguide_cli.suites.simulated import settings_of

COLUMNS = (
    "method",
    "B",
    "C",
    "tok/s",
    "full batch",
    "a request",
    "vs best fixed",
    "tau",
    "h %",
    "TTFT ms",
    "TPOT ms",
    "blocks %",
)


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Simulate every cell; returns the `recguide.bench/1` record."""
    from recguide_core.simulator import simulate

    settings = settings_of(options)
    total, done = len(settings.cells()), 0

    def tell(cell: Any, row: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        console.note(f"[{done}/{total}] {cell.key}: {row['tps']:,.0f} tok/s")

    record = simulate(settings, tell)
    rows = record["rows"]
    clock = record["run"]["clock"]
    console.table(f"Simulated on {clock}", COLUMNS, [_cells(row, rows) for row in rows])
    console.note(_known_prices(rows))
    console.note(
        "No model ran: texts are drawn from an acceptance model fitted to published figures, time "
        "is charged from the cost table. 'full batch' leaves out the end of the run, where slots "
        "stay empty. 'vs best fixed' compares with the fastest linear row of the same load."
    )
    folder = options["out"]
    if folder is not None:
        from recguide_core.tables import write_json

        write_json(folder / "simulate.json", console.finite(record))
        console.note(f"Saved in {folder}")
    return record


def _known_prices(rows: list[dict[str, Any]]) -> str:
    """How the prices of the steps are known."""
    total: dict[str, int] = {}
    for row in rows:
        for origin, count in row["price_origins"].items():
            total[origin] = total.get(origin, 0) + count
    steps = max(sum(total.values()), 1)
    shares = ", ".join(f"{100 * n / steps:.0f} % {origin}" for origin, n in sorted(total.items()))
    return f"Prices of {steps:,} forwards: {shares}."


def _cells(row: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    fixed = [
        r["tps"]
        for r in rows
        if r["concurrency"] == row["concurrency"] and r["method"] in ("linear", "ar")
    ]
    gain = f"{row['tps'] / max(fixed) - 1:+.1%}" if fixed else "–"
    common = sorted(row["blocks"].items(), key=lambda item: -item[1])[:3]
    blocks = " ".join(f"{b}:{100 * s:.0f}" for b, s in common if s >= 0.02)
    block = "–" if row["block_size"] is None else str(row["block_size"])
    return [
        row["method"],
        block,
        str(row["concurrency"]),
        console.number(row["tps"], 0),
        console.number(row["tps_steady"], 0),
        console.number(row["tps_per_request"], 0),
        gain,
        console.number(row["tau"]),
        console.number(100 * (row["reuse"] or 0.0), 1),
        console.number(row["ttft_ms"], 1),
        console.number(row["tpot_ms"]),
        blocks,
    ]
