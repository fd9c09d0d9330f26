"""Readers of prompt files: JSONL, JSON, CSV, Parquet, plain text; gz of the text formats.

A reader yields `(line, row)`, where `row` is what the file holds there or a `BadRowError` that says
why it cannot be read. Line numbers count from 1; for Parquet and JSON arrays they are row numbers.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from recguide_core.datasets.rows import BadRowError
from recguide_core.errors import DataError, UsageError

Rows: TypeAlias = Iterator[tuple[int, Any]]

MAX_LINE = 8 * 2**20
"""Bytes of a line beyond which it is taken for a broken file, not for a prompt."""

SAMPLES = {
    ".jsonl": '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]} a line',
    ".json": '[{"id": "1", "conversations": [{"from": "human", "value": "..."}]}]',
    ".csv": "a header with the column prompt (or name it with --column), then a row a prompt",
    ".parquet": "a column prompt (text) or messages (list of role and content)",
    ".txt": "one prompt a line",
}
"""A one-line sample of each format, by file ending."""


def read_rows(path: Path) -> Rows:
    """Rows of a file, by its ending.

    Raises:
        DataError: missing, a folder, unreadable or empty. UsageError: unknown ending.
    """
    ending = Path(path.name.removesuffix(".gz")).suffix.lower()
    readers: dict[str, Callable[[Path], Rows]] = {
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
        ".json": _json,
        ".csv": _csv,
        ".tsv": _csv,
        ".parquet": _parquet,
        ".txt": _text,
        ".text": _text,
    }
    if not path.exists():
        raise DataError(f"No file {path}.", "Check the path; a data set is named without a dot.")
    if path.is_dir():
        raise DataError(f"{path} is a folder.", "Name a file in it, or pass it as --data-dir.")
    if ending not in readers:
        raise UsageError(
            f"{path.name} has no ending that tells its format.",
            f"Rename it to one of {', '.join(SAMPLES)}.",
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.", f"Expected {SAMPLES.get(ending, 'rows')}.")
    return readers[ending](path)


def _bytes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines without their ends; a byte-order mark at the start is dropped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                start = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
                yield number, line[start:].rstrip(b"\r\n")
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}.", "Check the file.") from error


def _lines(path: Path) -> Iterator[tuple[int, str | BadRowError]]:
    """Text lines that are not blank."""
    for number, line in _bytes(path):
        if len(line) > MAX_LINE:
            yield (
                number,
                BadRowError(f"the line has {len(line):,} bytes; at most {MAX_LINE:,} are read"),
            )
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            yield number, BadRowError(f"not UTF-8 (byte {error.start + 1} of the line)")
            continue
        if text.strip():
            yield number, text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _jsonl(path: Path) -> Rows:
    for number, line in _lines(path):
        if isinstance(line, BadRowError):
            yield number, line
            continue
        try:
            yield number, json.loads(line, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            where = f" at column {error.colno}" if len(line) > 1 else ""
            hint = "; one object a line is expected" if line.strip() in ("{", "[") else ""
            yield number, BadRowError(f"not JSON{where} ({error.msg}){hint}")
        except (ValueError, RecursionError) as error:
            yield number, BadRowError(f"not JSON ({error})")


def _whole_text(path: Path) -> str:
    data = b"\n".join(line for _, line in _bytes(path))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: not UTF-8 (byte {error.start + 1}).", "Save the file as UTF-8."
        ) from error


def _json(path: Path) -> Rows:
    try:
        document = json.loads(_whole_text(path), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: not JSON ({error.msg}).",
            "A .json file holds one array; name it .jsonl if it has one object a line.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}).", "Check the file.") from error
    if not isinstance(document, list):
        raise DataError(
            f"{path}: the document is no array.", f"Expected {SAMPLES['.json']}, or use .jsonl."
        )
    yield from enumerate(document, start=1)


def _csv(path: Path) -> Rows:
    text = _whole_text(path)
    header = text.split("\n", 1)[0]
    separator = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    columns: list[str] | None = None
    line = 1
    try:
        for cells in reader:
            if columns is None:
                columns = [name.strip() for name in cells]
            elif not any(cell.strip() for cell in cells):
                pass
            elif len(cells) != len(columns):
                yield line, BadRowError(f"{len(cells)} cells, but the header has {len(columns)}")
            else:
                yield line, dict(zip(columns, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        yield line, BadRowError(f"not CSV ({error})")


def _parquet(path: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as error:
        cause = str(error).splitlines()[0]
        raise DataError(
            f"{path} is no readable Parquet file: {cause}", "Check the file."
        ) from error


def _text(path: Path) -> Rows:
    for number, line in _lines(path):
        yield number, line if isinstance(line, BadRowError) else {"prompt": line}
