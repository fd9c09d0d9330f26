"""The method suite's record as tables, ours beside the paper's NLD-8B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from recguide_core.acceptance.published import PUBLISHED, TABLE1
from recguide_core.bench.suites.published import (
    SPEEDUP,
    TABLE5,
    TABLE6,
    TAU,
    table4,
)
from recguide_core.bench.suites.report import Cell, Row, SuiteReport, SuiteTable

PAPER = "nld-8b"
CATEGORIES = (("math", "Math"), ("code", "Code"), ("qa_if", "QA & IF"), ("overall", "Overall"))
_INTERVALS = ("A <= 8", "8 < A <= 16", "A > 16")
_TABLE5 = {
    "LinearSS": "linear",
    "+ 1st correction": "first",
    "+ 2nd correction": "second",
    "+ continuation": "continuation",
}
_TABLE6 = {
    "Fixed block (recipe)": "fixed",
    "+ s_t, padded": "entropy",
    "+ z_t, padded": "outcome",
    "+ bucketing": "bucketed",
}
WHY = {
    "table1": "Persistence is what the two models share: long rounds follow long rounds far more "
    "often than short ones do. A small model accepts fewer tokens a round, so its mass sits in the "
    "first row and column.",
    "table2": "tau is a property of the model and its text; the order of the methods is one of "
    "the method. TiDAR prepares every position and reaches the longest window at the price of "
    "B (B + 1) query tokens a round, which the clock charges.",
    "table3": "A smaller model is unsure at more places: more rounds fail at a predicted position "
    "and fewer pass in full, so corrections are covered more often and continuations less.",
    "table4": "The shares follow V_B of the model at hand and T_C(B) of the clock. A model with "
    "short acceptances turns to B = 8 at lower loads than NLD-8B.",
    "table5": "The second row is the overlap engine without any branch. It equals LinearSS by "
    "construction here, so all of the gain behind it comes from branches; the paper's first step "
    "also holds whatever its merged engine saves.",
    "table6": "Bucketing splits a batch: unless more requests wait than a batch holds, its buckets "
    "are small and the forward time hardly falls. One ragged forward needs no buckets.",
}


def method_report(record: dict[str, Any]) -> SuiteReport:
    """Tables 1 to 6 of a `recguide.suite.method/1` record."""
    tables = [
        _transitions(record["table1"]),
        *_low_load(record["table2"]),
        _outcomes(record["table3"]),
        _shares(record["table4"]),
        _ablation("Table 5: branches at C = 1, tokens/s (gain)", record["table5"], TABLE5, _TABLE5),
        _ablation("Table 6: adaptive drafting, mean tokens/s", record["table6"], TABLE6, _TABLE6),
    ]
    about = {k: v for k, v in record.items() if not k.startswith("table")}
    return SuiteReport("method", tables, about)


def _known(value: float) -> float | None:
    """None instead of NaN: nothing was seen that could be counted."""
    return None if math.isnan(value) else value


def _transitions(table: dict[str, Any]) -> SuiteTable:
    rows = [
        Row(
            f"{name} ({table['share'][i]:.0f} % of rounds)",
            [Cell(_known(table["percent"][i][j]), 100 * float(TABLE1[i, j])) for j in range(3)],
        )
        for i, name in enumerate(_INTERVALS)
    ]
    return SuiteTable(
        "Table 1: A_t to A_(t+1) at B = 32, percent", _INTERVALS, rows, ".1f", WHY["table1"]
    )


def _low_load(rows: list[dict[str, Any]]) -> list[SuiteTable]:
    groups = sorted({g for row in rows for g in row["tau"]} - {"mean"})
    columns = (*groups, "mean")

    def cells(row: dict[str, Any], key: str, paper: float) -> list[Cell]:
        return [Cell(row[key][g], paper if g == "mean" else None) for g in columns]

    def name(row: dict[str, Any]) -> str:
        return str(row["method"]) + ("" if row["lossless"] else " (text differs from AR)")

    tau = [Row(name(r), cells(r, "tau", TAU[PAPER][r["method"]][3])) for r in rows]
    speed = [Row(name(r), cells(r, "speedup", SPEEDUP[PAPER][r["method"]])) for r in rows]
    return [
        SuiteTable("Table 2: tau, C = 1, B = 16", columns, tau, ".2f", WHY["table2"]),
        SuiteTable("Table 2: speed-up over AR on the clock", columns, speed, ".2f"),
    ]


def _outcomes(table: dict[str, Any]) -> SuiteTable:
    paper = PUBLISHED[PAPER]
    key = {"math": "math", "code": "code", "qa_if": "qa", "overall": "all"}
    present = [(k, label) for k, label in CATEGORIES if k in table]

    def row(label: str, ours: str, published: Sequence[float]) -> Row:
        return Row(
            label,
            [Cell(table[k][ours], 100 * p) for (k, _), p in zip(present, published, strict=True)],
        )

    names = [key[k] for k, _ in present]
    rows = [
        row("correction coverage", "correction_coverage", [paper.correction[n][0] for n in names]),
        row("correction reuse", "correction_reuse", [paper.correction[n][1] for n in names]),
        row(
            "continuation coverage",
            "continuation_coverage",
            [paper.continuation[n][0] for n in names],
        ),
        row("continuation reuse", "continuation_reuse", [paper.continuation[n][1] for n in names]),
        row("no hit", "no_hit", [paper.no_hit[n] for n in names]),
    ]
    states = sorted({s for k, _ in present for s in table[k]["states"]})
    for state in states:
        share = [
            Cell(100 * table[k]["states"].get(state, 0) / table[k]["rounds"]) for k, _ in present
        ]
        rows.append(Row(f"  {state}", share))
    columns = [label for _, label in present]
    return SuiteTable(
        "Table 3: branch outcomes at C = 1, B = 16, percent of rounds",
        columns,
        rows,
        ".1f",
        WHY["table3"],
    )


def _shares(rows: list[dict[str, Any]]) -> SuiteTable:
    present = [(k, label) for k, label in CATEGORIES if k in rows[0]["share"]]
    place = {k: i for i, (k, _) in enumerate(CATEGORIES)}
    out = []
    for row in rows:
        load = row["concurrency"]
        for j, block in enumerate((8, 16, 32)):
            cells = [
                Cell(_known(row["share"][k][j]), _paper_share(load, place[k], j))
                for k, _ in present
            ]
            out.append(Row(f"C = {load}, B = {block}", cells))
    columns = [label for _, label in present]
    return SuiteTable(
        "Table 4: block shares of adaptive drafting, percent", columns, out, ".1f", WHY["table4"]
    )


def _paper_share(load: int, category: int, place: int) -> float | None:
    try:
        return table4(PAPER, load, category, place)
    except KeyError:
        return None


def _ablation(
    title: str,
    rows: list[dict[str, Any]],
    published: dict[str, dict[str, float]],
    names: dict[str, str],
) -> SuiteTable:
    paper = published[PAPER]
    first = next(iter(paper.values()))

    def gain(label: str) -> float | None:
        return 100 * (paper[names[label]] / first - 1) if label in names else None

    out = [
        Row(
            row["method"],
            [
                Cell(row["tps"], paper.get(names.get(row["method"], ""))),
                Cell(row["gain"], gain(row["method"]) or None),
            ],
        )
        for row in rows
    ]
    why = WHY["table5" if "Table 5" in title else "table6"]
    return SuiteTable(title, ("tokens/s", "gain, %"), out, ".1f", why)
