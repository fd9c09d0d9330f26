"""The folder of a run: settings first, rows as requests finish, cells as they end.

| file | content |
|---|---|
| `run.json` | settings, where each came from, versions and hashes; schema `recguide.run/1` |
| `requests.jsonl` | one row per finished request, appended (rows.RequestRow) |
| `cells.jsonl` | one row per finished cell, appended; the cell's key and its metrics |
| `requests.parquet` | the request rows again, written whole at the end |
| `summary.json` | the `recguide.bench/1` record, written whole at the end |

A run that was stopped goes on cell by cell: rows of a cell without an entry in `cells.jsonl` are
dropped, since a load that stood still in the middle measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from recguide_core.bench.rows import RequestRow
from recguide_core.errors import DataError, MismatchError, UsageError
from recguide_core.tables import read_json, read_rows, write_json, write_whole

RUN_SCHEMA = "recguide.run/1"
RUN, REQUESTS, CELLS = "run.json", "requests.jsonl", "cells.jsonl"
PARQUET, SUMMARY = "requests.parquet", "summary.json"

# What may differ when a run goes on: it decides no measured number.
_FREE = frozenset({"check"})


class RunFolder:
    """Writes a run; every line that it holds is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, settings: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Make the folder, or take over the one that is there.

        Raises:
            UsageError: it holds a run and neither resume nor overwrite was asked for, or there
                is nothing to resume. MismatchError: the run to resume had other settings.
        """
        existing = self.path / RUN
        if existing.is_file() and not (resume or overwrite):
            raise UsageError(
                f"{self.path} already holds a run.",
                "Choose another --out, go on with --resume, or replace it with --overwrite.",
            )
        if resume:
            if not existing.is_file():
                raise UsageError(f"{self.path} holds no run to resume.", "Check --out.")
            _same_settings(read_json(existing), settings, self.path)
            self._drop_unfinished()
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.path} cannot be made: {error}.", "Check --out.") from error
        for name in (REQUESTS, CELLS, PARQUET, SUMMARY):
            (self.path / name).unlink(missing_ok=True)
        write_json(existing, {"schema": RUN_SCHEMA, **settings})

    def add_request(self, row: RequestRow) -> None:
        """Append the row of a finished request."""
        _append(self.path / REQUESTS, row.as_record())

    def add_cell(self, key: str, row: dict[str, Any], requests: Iterable[RequestRow]) -> None:
        """Append a finished cell, after its requests' rows were replaced by their checked form."""
        kept = [r for r in read_rows(self.path / REQUESTS) if r["cell"] != key]
        _write_lines(self.path / REQUESTS, [*kept, *(r.as_record() for r in requests)])
        _append(self.path / CELLS, {"cell": key, **row})

    def finished_cells(self) -> dict[str, dict[str, Any]]:
        """Cell key -> its row, for the cells that are done."""
        return {line.pop("cell"): line for line in read_rows(self.path / CELLS)}

    def contents(self) -> tuple[dict[str, Any], list[dict[str, Any]], list[RequestRow]]:
        """Settings, cell rows and request rows, as the report takes them."""
        about, rows, cells = read_run(self.path)
        return about, list(cells.values()), rows

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary and the Parquet copy of the request rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        write_json(self.path / SUMMARY, summary)
        rows = read_rows(self.path / REQUESTS)
        if rows:
            for row in rows:
                row["evidence"] = json.dumps(row["evidence"]) if row["evidence"] else None
            table = pa.Table.from_pylist(rows, schema=request_schema())
            write_whole(self.path / PARQUET, lambda stream: pq.write_table(table, stream))

    def _drop_unfinished(self) -> None:
        done = set(self.finished_cells())
        rows = read_rows(self.path / REQUESTS)
        _write_lines(self.path / REQUESTS, [row for row in rows if row["cell"] in done])
        _write_lines(self.path / CELLS, read_rows(self.path / CELLS))


def request_schema() -> Any:
    """Arrow schema of `requests.parquet`."""
    import pyarrow as pa

    words = ("key", "cell", "prompt_id", "prompt_hash", "dataset", "category", "finish", "error")
    counts = (
        "index",
        "turn",
        "prompt_tokens",
        "max_tokens",
        "token_count",
        "output_tokens",
        "bits_differ",
    )
    rounds = ("rounds", "forwards", "reused", "round_tokens")
    lists = ("chunk_tokens", "round_block", "round_accepted", "round_source")
    times = ("arrival_s", "first_s", "end_s", "ttft_ms", "tpot_ms", "e2e_ms")
    return pa.schema(
        [
            *((name, pa.string()) for name in (*words, "answer", "lossless", "evidence")),
            *((name, pa.int64()) for name in (*counts, *rounds)),
            *((name, pa.float64()) for name in times),
            *((name, pa.bool_()) for name in ("warmup", "cooldown")),
            ("chunk_s", pa.list_(pa.float64())),
            *(
                (name, pa.list_(pa.int64()))
                for name in (*lists, "prompt", "tokens", "origins", "bits")
            ),
        ]
    )


def read_run(path: Path) -> tuple[dict[str, Any], list[RequestRow], dict[str, dict[str, Any]]]:
    """Settings, request rows and cell rows of a saved run.

    Raises:
        DataError: no run there, or one of another schema.
    """
    if not (path / RUN).is_file():
        raise DataError(f"{path} holds no run.", "Name a folder that `recguide bench --out` wrote.")
    settings = read_json(path / RUN)
    if settings.get("schema") != RUN_SCHEMA:
        raise DataError(
            f"{path / RUN} has the schema {settings.get('schema')!r}, not {RUN_SCHEMA}.",
            "Measure again with this version.",
        )
    rows = [RequestRow.from_record(line) for line in read_rows(path / REQUESTS)]
    return settings, rows, RunFolder(path).finished_cells()


def _append(path: Path, record: dict[str, Any]) -> None:
    # One flushed write of one line, and no fsync: this runs while the load is being measured. A
    # kill leaves at most one cut line, at the end, which reading passes over.
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(record))


def _write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    text = "".join(_line(record) for record in records)
    write_whole(path, lambda stream: _put(stream, text.encode()))


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _put(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)


def _same_settings(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    for name in ("settings", "model_hash", "prompts_hash"):
        old, new = before.get(name), now.get(name)
        if name == "settings":
            old, new = _comparable(old), _comparable(new)
        if old != new:
            changed = name
            if isinstance(old, dict) and isinstance(new, dict):
                keys = sorted(old.keys() | new.keys())
                changed = ", ".join(k for k in keys if old.get(k) != new.get(k))
            raise MismatchError(
                f"The run in {path} was made with other settings: {changed}.",
                "Resume with the same settings, or choose another --out.",
            )


def _comparable(settings: Any) -> Any:
    if not isinstance(settings, dict):
        return settings
    return {name: value for name, value in settings.items() if name not in _FREE}
