"""Whole-file writes, content hashes and complete-row logs.

A reader never sees half a file: content goes to a temporary neighbour that is renamed over the
target. Logs of long runs are JSON lines; a line cut by a kill is dropped on reading, so that a
run resumes by key.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from recguide_core.errors import DataError


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it into place.

    Raises:
        DataError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise DataError(
            f"Cannot write {path}: {error.strerror}.", "Choose a folder you can write to."
        ) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, whole."""
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
    write_whole(path, lambda stream: _write_text(stream, text))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: missing or malformed, with line and column.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.", "Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.", "Check the file.") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not JSON (line {error.lineno}, column {error.colno}: {error.msg}).",
            "Make the file again.",
        ) from error


def digest_json(value: Any) -> str:
    """sha256 (hex) of the canonical JSON form of `value`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def append_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append complete JSON lines to a log; mends a cut last line first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    with path.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                text = "\n" + text
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Complete rows of a log (none when it does not exist); cut lines are left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _write_text(stream: BinaryIO, text: str) -> None:
    stream.write(text.encode())
