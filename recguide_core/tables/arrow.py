"""Read and write tables as Arrow IPC files with provenance and a content hash.

The hash covers columns and provenance, not the bytes of the file, so it does not depend on the
Arrow version; it is stored in the file and checked on reading.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recguide_core.errors import DataError, MismatchError
from recguide_core.tables.files import write_whole
from recguide_core.tables.schema import SCHEMA_VERSION, SCHEMAS, Columns, Schema, validate

ANY_CPU = "cpu-any"
_MAGIC = b"ARROW1"
_FAMILY = SCHEMA_VERSION.rpartition("/")[0] + "/"

_TYPES = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "list<int64>": pa.list_(pa.int64()),
    "list<float32>": pa.list_(pa.float32()),
    "list<float64>": pa.list_(pa.float64()),
}
_NUMPY = {"int64": np.int64, "float64": np.float64, "float32": np.float32, "bool": np.bool_}


@dataclass(frozen=True, slots=True)
class Table:
    """A validated table: columns, provenance, content hash, and where it was read from."""

    kind: str
    columns: Columns
    provenance: dict[str, str]
    digest: str
    path: Path | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def make_table(kind: str, columns: Columns, provenance: Mapping[str, str]) -> Table:
    """Validate and normalise columns (order and types of the schema) into a `Table`.

    Raises:
        DataError: columns, values or provenance do not fit the schema.
    """
    schema = SCHEMAS[kind]
    validate(kind, columns, provenance)
    arranged = _normalise(schema, columns)
    known = {key: str(value) for key, value in provenance.items()}
    return Table(kind, arranged, known, _digest(kind, arranged, known))


def write_table(path: Path, table: Table) -> str:
    """Write `table` to `path` as an Arrow IPC file and return its content hash."""
    schema = SCHEMAS[table.kind]
    metadata = {
        "schema": SCHEMA_VERSION,
        "kind": table.kind,
        "provenance": json.dumps(table.provenance, sort_keys=True),
        "sha256": table.digest,
    }
    arrays = [_to_arrow(table.columns[n], c.type) for n, c in schema.columns.items()]
    fields = [pa.field(n, _TYPES[c.type]) for n, c in schema.columns.items()]
    arrow = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))

    def write(stream: Any) -> None:
        with pa.ipc.new_file(stream, arrow.schema) as writer:
            writer.write_table(arrow)

    write_whole(path, write)
    return table.digest


def read_table(path: Path, kind: str) -> Table:
    """Read and validate a table.

    Raises:
        DataError: missing file, not Arrow, another kind or schema version, bad columns, or
            content that differs from the stored hash.
    """
    try:
        with pa.memory_map(str(path)) as source:
            arrow = pa.ipc.open_file(source).read_all()
            metadata = _metadata(path, arrow.schema, kind)
            columns = {n: _from_arrow(arrow.column(n)) for n in arrow.column_names}
    except FileNotFoundError as error:
        raise DataError(
            f"There is no {kind} table at {path}.",
            "Check the path, or make one with `recguide profile` or `recguide calibrate`.",
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, kind, error) from error
    try:
        table = make_table(kind, columns, json.loads(metadata["provenance"]))
    except DataError as error:
        raise DataError(f"{path}: {error.cause}", error.remedy) from error
    except ValueError as error:
        raise DataError(
            f"The provenance of {path} is not JSON.", "Make the table again."
        ) from error
    if table.digest != metadata["sha256"]:
        raise DataError(
            f"The content of {path} does not match its own hash.", "Make the table again."
        )
    return Table(kind, table.columns, table.provenance, table.digest, path)


def check_fit(
    table: Table,
    model_hash: str | None = None,
    device: str | None = None,
    force: bool = False,
) -> list[str]:
    """Check that a table belongs to the model and device in use; returns one-line notes.

    A table of `cpu-any` loads on every CPU with a note. None skips a check.

    Raises:
        MismatchError: another model or device, unless `force`, which turns it into a note.
    """
    notes: list[str] = []
    made_for = table.provenance
    if model_hash is not None and made_for["model_hash"] != model_hash:
        notes.append(
            f"The {table.kind} table was made with model {made_for['model']} "
            f"({made_for['model_hash'][:12]}), not with the one in use ({model_hash[:12]})."
        )
    on = made_for["device"]
    shared = on == ANY_CPU and device is not None and device.startswith("cpu")
    if device is not None and on != device and not shared:
        notes.append(f"The {table.kind} table was measured on {on}, not on {device}.")
    if notes and not force:
        raise MismatchError(" ".join(notes), "Make it again for this setup, or pass --force.")
    if shared:
        notes.append(f"The {table.kind} table is the shipped one for any CPU ({ANY_CPU}).")
    return notes


def _unreadable(path: Path, kind: str, error: Exception) -> DataError:
    """Why a file is no Arrow file, by its first bytes where they tell."""
    wanted = f"Give a {kind} table written by recguide."
    try:
        with path.open("rb") as stream:
            start = stream.read(6)
    except OSError:
        return DataError(f"{path} cannot be read: {error}.", wanted)
    if not start:
        return DataError(f"{path} is empty.", f"Make it again; {wanted[0].lower()}{wanted[1:]}")
    if start.startswith(b"\x1f\x8b"):
        return DataError(f"{path} is gzip-compressed.", f"Unpack it first: gunzip {path}")
    if start == _MAGIC:
        return DataError(
            f"{path} is cut off or damaged ({str(error).splitlines()[0].rstrip('.')}).",
            "Copy it again, or make it again.",
        )
    return DataError(f"{path} is not an Arrow IPC file.", wanted)


def _metadata(path: Path, schema: pa.Schema, kind: str) -> dict[str, str]:
    raw = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    version = raw.get("schema", "")
    if version.startswith(_FAMILY) and version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has the version {version}; this recguide reads {SCHEMA_VERSION}.",
            "Make it again with this version, or use the version that wrote it.",
        )
    if version != SCHEMA_VERSION or "sha256" not in raw or "provenance" not in raw:
        raise DataError(
            f"{path} is not a {SCHEMA_VERSION} table.", "Give a table written by recguide."
        )
    if raw.get("kind") != kind:
        raise DataError(f"{path} is a {raw.get('kind')} table, not a {kind} table.", "Check it.")
    return raw


def _normalise(schema: Schema, columns: Columns) -> Columns:
    return {n: _from_arrow(_to_arrow(columns[n], c.type)) for n, c in schema.columns.items()}


def _to_arrow(values: Any, name: str) -> pa.Array:
    try:
        if name.startswith("list"):
            item = _NUMPY[name[5:-1]]
            return pa.array([np.asarray(v, dtype=item) for v in values], type=_TYPES[name])
        if name == "string":
            return pa.array([str(v) for v in values], type=pa.string())
        return pa.array(np.asarray(values, dtype=_NUMPY[name]))
    except (TypeError, ValueError, pa.ArrowInvalid) as error:
        raise DataError(f"A column does not hold {name}: {error}.", "Make it again.") from error


def _from_arrow(column: pa.Array | pa.ChunkedArray) -> Any:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_list(array.type):
        flat = array.values.to_numpy(zero_copy_only=False)
        ends = array.offsets.to_numpy()
        return [flat[a:b].copy() for a, b in itertools.pairwise(ends)]
    if pa.types.is_string(array.type):
        return np.array(array.to_pylist(), dtype=object)
    return array.to_numpy(zero_copy_only=False).copy()


def _digest(kind: str, columns: Columns, provenance: dict[str, str]) -> str:
    sha = hashlib.sha256(f"{SCHEMA_VERSION}\n{kind}\n".encode())
    sha.update(json.dumps(provenance, sort_keys=True).encode())
    for name, values in columns.items():
        sha.update(f"\n{name}\n".encode())
        if isinstance(values, list):
            for part in values:
                sha.update(len(part).to_bytes(8, "little") + part.tobytes())
        elif values.dtype == object:
            sha.update(json.dumps(values.tolist()).encode())
        else:
            sha.update(np.ascontiguousarray(values).tobytes())
    return sha.hexdigest()
