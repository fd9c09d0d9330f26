"""Figures over the load: speed, time of a step, latency (Figures 2b and 5)."""

from __future__ import annotations

from recguide_core.bench.report.chart import Axes, BarChart, LineChart, Series
from recguide_core.bench.report.figure import (
    ByCell,
    CellRows,
    Figure,
    key_of,
    lines_of,
    load_axis,
    load_value,
)
from recguide_core.bench.report.svg import short
from recguide_core.bench.rows import cell_of


def pareto(cells: CellRows, _: ByCell) -> Figure | None:
    lines = lines_of(cells)
    if not lines:
        return None
    series = [
        Series(
            name,
            [row["tps_per_request"] for row in rows],
            [row["tps"] for row in rows],
            [
                f"load {cell_of(row).load}: {short(row['tps'])} tokens/s in all, "
                f"{short(row['tps_per_request'])} a request"
                for row in rows
            ],
        )
        for name, rows in lines.items()
    ]
    header = ("method", "load", "tokens_per_s_request", "tokens_per_s_all")
    data = [
        (name, cell_of(row).load, row["tps_per_request"], row["tps"])
        for name, rows in lines.items()
        for row in rows
    ]
    title = "Throughput in all against speed of a request"
    caption = "One point per load. Further up serves more, further right serves each one faster."
    chart = LineChart(title, series, Axes("tokens/s of a request (mean)", "tokens/s in all"))
    return Figure("pareto", title, caption, chart, header, data)


def forward_time(cells: CellRows, _: ByCell) -> Figure | None:
    lines = {
        name: [row for row in rows if row.get("step_ms")] for name, rows in lines_of(cells).items()
    }
    lines = {name: rows for name, rows in lines.items() if rows}
    if not lines:
        return None
    series = [
        Series(name, [load_value(r) for r in rows], [r["step_ms"] for r in rows])
        for name, rows in lines.items()
    ]
    data = [
        (n, cell_of(r).load, r["step_ms"], r["steps"]) for n, rows in lines.items() for r in rows
    ]
    title = "Time of a step by load"
    caption = "Mean over the cell's steps on the run's clock, prompts included."
    chart = LineChart(title, series, Axes(load_axis(cells), "ms", log_x=True))
    header = ("method", "load", "step_ms", "steps")
    return Figure("step-time", title, caption, chart, header, data)


def latency(cells: CellRows, _: ByCell) -> Figure | None:
    # A server may answer with nothing: then there is no first token.
    lines = lines_of([row for row in cells if row["ttft_ms"] is not None])
    if not lines:
        return None
    series = [
        Series(
            name,
            [load_value(row) for row in rows],
            [row["ttft_ms"] for row in rows],
            [
                f"load {cell_of(row).load}: TTFT {short(row['ttft_ms'])} ms, p99 "
                f"{short(row['distributions']['ttft_ms']['p99'])} ms"
                for row in rows
            ],
        )
        for name, rows in lines.items()
    ]
    header = ("method", "load", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
    data = [
        (
            name,
            cell_of(row).load,
            *(row["distributions"][m][p] for m in ("ttft_ms", "tpot_ms") for p in ("p50", "p99")),
        )
        for name, rows in lines.items()
        for row in rows
    ]
    title = "Time to the first token by load"
    caption = "Median over requests; p99 on hover and in the data."
    chart = LineChart(title, series, Axes(load_axis(cells), "ms", log_x=True))
    return Figure("ttft", title, caption, chart, header, data)


def breakdown(cells: CellRows, _: ByCell) -> Figure | None:
    timed = [r for r in cells if r.get("step_ms") and r["host_share"] is not None]
    if not timed:
        return None
    groups = [key_of(row) for row in timed]
    host = [max(r["host_share"], 0.0) * r["step_ms"] for r in timed]
    forward = [r["step_ms"] - h for r, h in zip(timed, host, strict=True)]
    floor = [
        min((r.get("floor") or {"ms": 0.0})["ms"], f) for r, f in zip(timed, forward, strict=True)
    ]
    above = [f - least for f, least in zip(forward, floor, strict=True)]
    plan = [min(r["plan_ms"], h) for r, h in zip(timed, host, strict=True)]
    rest = [h - p for h, p in zip(host, plan, strict=True)]
    stacks = [("rest of the forward", above), ("planning", plan), ("rest of the host", rest)]
    if any(floor):
        stacks = [("physical floor", floor), *stacks]
    data = [(g, *(s[i] for _, s in stacks)) for i, g in enumerate(groups)]
    title = "Where the time of a step goes"
    caption = (
        "The forward: the same steps replayed on prebuilt tensors. Its floor: what the device "
        "needs for the bytes or the FLOPs of the step, whichever is longer."
    )
    chart = BarChart(title, groups, stacks, "ms a step")
    return Figure("breakdown", title, caption, chart, ("cell", *(n for n, _ in stacks)), data)


def turns(cells: CellRows, _: ByCell) -> Figure | None:
    """How a conversation wears on: each turn has the ones before it in its prompt."""
    asked = {
        key_of(row): [found for found in row["turns"] if found["ttft_ms"] is not None]
        for row in cells
        if row.get("turns")
    }
    asked = {key: found for key, found in asked.items() if found}
    if not asked:
        return None
    series = [
        Series(
            key,
            [found["turn"] + 1 for found in by_turn],
            [found["ttft_ms"] for found in by_turn],
            [
                f"turn {found['turn'] + 1}: TTFT {short(found['ttft_ms'])} ms, "
                f"{short(found['prompt_tokens'])} prompt tokens"
                for found in by_turn
            ],
        )
        for key, by_turn in asked.items()
    ]
    header = ("cell", "turn", "requests", "prompt_tokens", "output_tokens", "ttft_p50_ms", "A")
    names = ("requests", "prompt_tokens", "output_tokens", "ttft_ms", "accepted_length")
    data = [
        (key, found["turn"] + 1, *(found[name] for name in names))
        for key, by_turn in asked.items()
        for found in by_turn
    ]
    title = "Time to the first token by turn of the conversation"
    caption = "Median over conversations; every prompt holds the answers before it."
    chart = LineChart(title, series, Axes("turn", "ms"))
    return Figure("turns", title, caption, chart, header, data)
