"""The human view of a bench run: progress while it runs, one table at its end."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recguide_cli import console
from recguide_cli.render.runs import bitwise_line
from recguide_core import metrics
from recguide_core.bench.bits import guarantee
from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.report.page import peaks_text
from recguide_core.bench.rows import RequestRow, cell_of
from recguide_core.bench.run import Watcher
from recguide_core.datasets import Loaded

COLUMNS = (
    "method",
    "B",
    "C",
    "tok/s",
    "a request",
    "x AR",
    "tau",
    "TPF",
    "A",
    "TTFT ms",
    "TPOT ms",
    "host",
    "text",
)


def default_folder() -> Path:
    """A folder of its own for every run."""
    return Path("runs") / datetime.datetime.now().strftime("bench-%Y%m%d-%H%M%S")


class BenchView:
    """Shows progress on stderr; a context manager around the run."""

    def __init__(self, config: BenchConfig, loaded: Loaded) -> None:
        self._config = config
        self._loaded = loaded
        self._cells = len(config.cells())
        self._started = 0
        self._failed = 0
        self._tokens = 0
        self._forwards = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}", style="dim"),
            console=console.stderr(),
            transient=True,
        )
        self._task = self._progress.add_task("loading the model", total=None, now="")

    def __enter__(self) -> Self:
        for dataset, column in self._loaded.columns.items():
            console.note(f"{dataset}: {self._loaded.sources[dataset]}, column '{column}'")
        for skipped in self._loaded.skipped:
            console.note(f"left out {skipped.file}:{skipped.line}: {skipped.cause}")
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def watcher(self) -> Watcher:
        """The calls by which the run tells how far it is."""
        return Watcher(self._cell, self._request, self._checking)

    def _cell(self, cell: Cell, total: int) -> None:
        self._started += 1
        self._tokens = self._forwards = self._failed = 0
        name = f"[{self._started}/{self._cells}] {cell.key}"
        self._progress.reset(self._task, description=name, total=total, now="")

    def _request(self, row: RequestRow) -> None:
        self._failed += not row.ok
        self._tokens += row.round_tokens
        self._forwards += row.forwards
        tau = metrics.tau(self._tokens, self._forwards)
        failed = f", {self._failed} failed" if self._failed else ""
        self._progress.update(self._task, advance=1, now=f"tau {console.number(tau)}{failed}")

    def _checking(self, cell: Cell) -> None:
        del cell
        self._progress.update(self._task, now="comparing with AR")

    def show(self, record: dict[str, Any], folder: Path) -> None:
        """The table of all cells, then what deserves a word."""
        rows = record["rows"]
        baseline = {_load(r): r["tps"] for r in rows if r["method"] == "ar"}
        about = record["run"]
        config = self._config
        where = config.model or config.base_url
        console.table(
            f"{where} on {', '.join(config.data)}, clock: {rows[0]['clock']}",
            COLUMNS,
            [_cells(row, baseline) for row in rows],
        )
        for remark in _remarks(rows, about):
            console.note(remark)
        console.note(f"Saved in {folder}")


def _cells(row: dict[str, Any], baseline: dict[str, float | None]) -> list[str]:
    plain = baseline.get(_load(row))
    gain = row["tps"] / plain if plain and row["tps"] else None
    host = row["host_share"]
    return [
        row["method"],
        "–" if row["block_size"] is None else str(row["block_size"]),
        _load(row),
        console.number(row["tps"], 1),
        console.number(row["tps_per_request"], 1),
        console.number(gain),
        console.number(row["tau"]),
        console.number(row["tpf"]),
        console.number(row["accepted_length"]),
        console.number(row["ttft_ms"], 1),
        console.number(row["tpot_ms"]),
        "–" if host is None else f"{host:.0%}",
        guarantee(row),
    ]


def _load(row: dict[str, Any]) -> str:
    return cell_of(row).load


def _remarks(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> list[str]:
    remarks = [
        "tok/s: output of the whole run, and the mean of single requests; tau: tokens per two "
        "forwards; TPF: per decode forward; A: accepted length; text: against plain AR."
    ]
    remarks += [
        f"{cell_of(row).key}: {row['goodput']:.2f} requests/s within the limits, of "
        f"{row['requests_per_s']:.2f}."
        for row in rows
        if row["goodput"] is not None
    ]
    remarks += [
        f"{cell_of(row).key}: accepted length {found['accepted_length']:.2f} by the server's "
        f"{found['source']}."
        for row in rows
        if (found := row.get("server_metrics"))
    ]
    remarks += [
        f"{cell_of(row).key}: {bitwise_line(row['bitwise'])}." for row in rows if row["bitwise"]
    ]
    if about["settings"]["bitwise"]:
        remarks.append("Bitwise: tokens that decide ran one by one; times say nothing of a method.")
    remarks += _trace_remarks(about.get("trace"), rows)
    if any(row["turns"] for row in rows):
        remarks.append("Conversations: each turn's prompt holds the model's own answers before it.")
    remarks += _floor_remarks(rows, about.get("peaks"))
    failed = sum(row["failed"] for row in rows)
    if failed:
        remarks.append(f"{failed} requests failed; they are in no mean, and in requests.jsonl.")
    data = about["data"]
    if data["repeats"]:
        remarks.append(f"{data['used']} prompts; {data['repeats']} requests repeat one of them.")
    if about.get("policy") is not None:
        remarks.append(f"Policy: {about['policy']['path']}.")
        remarks += about["policy"]["notes"]
        remarks.append(f"{about['seen_by_policy']} of {data['used']} prompts made the policy.")
    losing = _losing(rows)
    if losing and not about["settings"]["bitwise"]:
        remarks.append(f"Speculation loses to AR here: {', '.join(losing)}.")
    chosen = [f"{k} ({v})" for k, v in sorted(about["origins"].items()) if v != "default"]
    remarks.append("Set by you: " + (", ".join(chosen) or "nothing; all defaults") + ".")
    return remarks


def _trace_remarks(trace: dict[str, Any] | None, rows: Sequence[dict[str, Any]]) -> list[str]:
    if trace is None:
        return []
    remarks = [f"left out {text}" for text in trace["skipped"]]
    remarks.append(
        f"Trace {trace['file']}: {trace['requests']} requests over {trace['seconds']:.1f} s "
        f"(timestamps in {trace['unit']}; --time-unit says otherwise), "
        f"{trace['input_tokens']} prompt tokens, at most {trace['output_tokens']} of answers."
    )
    if "scale" in trace:
        counted = [row["prompt_tokens"] for row in rows if not row["failed"]]
        share = "–" if not counted else f"{counted[0] / trace['input_tokens']:.1%}"
        remarks.append(
            f"The server counts {share} of the trace's prompt tokens; their text was cut by "
            f"{trace['scale']['characters']:.2f} characters a token."
        )
    return remarks


def _floor_remarks(rows: Sequence[dict[str, Any]], peaks: dict[str, Any] | None) -> list[str]:
    found = [row for row in rows if row.get("floor")]
    if not found or peaks is None:
        return []
    steps = ", ".join(
        f"{cell_of(row).key} {row['floor']['ms']:.2f} / {row['step_ms']:.2f} "
        f"({row['floor']['achieved']:.0%}, {row['floor']['bound']})"
        for row in found
    )
    return [f"Physical floor / time of a step, ms: {steps}. {peaks_text(peaks)}."]


def _losing(rows: Sequence[dict[str, Any]]) -> list[str]:
    plain = {_load(r): r["tps"] for r in rows if r["method"] == "ar" and r["tps"]}
    losing = []
    for row in rows:
        best = plain.get(_load(row))
        if best and row["tps"] and row["method"] != "ar" and row["tps"] < best:
            losing.append(cell_of(row).key)
    return losing
