"""Columns and provenance of every Arrow table that crosses a border.

Kinds of table: `cost` (time of a forward), `value` (expected accepted length V_B by signal),
`branch` (hit rate of prospective branches) and `trace` (what each calibration round did). Knows
names, types and ranges; not files.
"""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from recguide_core.errors import DataError

Columns: TypeAlias = dict[str, Any]
"""Column name to a NumPy array, or to a list of arrays for list columns."""

SCHEMA_VERSION = "recguide.table/1"

COST_KINDS = ("prefill", "ar", "draft", "verify", "fused", "mixed")
ORIGINS = ("measured", "interpolated", "modelled")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Arrow type name, smallest and largest value, allowed words."""

    type: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of one kind of table and the provenance keys it must carry."""

    kind: str
    columns: Mapping[str, Column]
    provenance: tuple[str, ...]
    key: tuple[str, ...] = field(default=())
    """Columns that together name a row at most once."""


_COMMON = ("model", "model_hash", "device", "date", "source")

COST = Schema(
    "cost",
    {
        "kind": Column("string", words=COST_KINDS),
        "requests": Column("int64", low=1),
        "query_tokens": Column("int64", low=1),
        "kv_tokens": Column("int64", low=0),
        "block_size": Column("int64", low=1),
        "branches": Column("int64", low=0),
        "mean_ms": Column("float64", low=0.0),
        "std_ms": Column("float64", low=0.0),
        "count": Column("int64", low=1),
        "origin": Column("string", words=ORIGINS),
    },
    (*_COMMON, "dtype", "attention", "graph", "seed"),
    key=("kind", "requests", "query_tokens", "kv_tokens", "block_size", "branches"),
)

VALUE = Schema(
    "value",
    {
        "block_size": Column("int64", low=1),
        "prev_block": Column("int64", low=0),
        "prev_full": Column("int64", low=-1, high=1),
        "lagged": Column("bool"),
        "bin_lo": Column("float64", nullable=True),
        "bin_hi": Column("float64", nullable=True),
        "value": Column("float64", low=0.0),
        "survival": Column("list<float64>"),
        "weight": Column("float64", low=0.0),
        "rounds": Column("int64", low=0),
    },
    (*_COMMON, "data", "requests", "rounds", "folds", "recipe"),
)

TRACE = Schema(
    "trace",
    {
        "data": Column("string"),
        "request": Column("string"),
        "round": Column("int64", low=0),
        "block_size": Column("int64", low=1),
        "chosen": Column("bool"),
        "committed": Column("int64", low=0),
        "accepted": Column("int64", low=0),
        "matched": Column("int64", low=0),
        "full": Column("bool"),
        "eos": Column("bool"),
        "reject_position": Column("int64", low=-1),
        "entropy": Column("list<float32>"),
        "margin": Column("list<float32>"),
        "confidence": Column("list<float32>"),
        "risky": Column("list<int64>"),
        "top1": Column("list<int64>"),
        "top2": Column("list<int64>"),
        "verdict": Column("int64", low=-1),
        "branch": Column("string"),
    },
    (*_COMMON, "data", "seed"),
    key=("data", "request", "round", "block_size"),
)

BRANCH = Schema(
    "branch",
    {
        "delta": Column("float64", low=0.0, high=1.0),
        "block_size": Column("int64", low=2),
        "kind": Column("int64", low=0, high=1),
        "rank": Column("int64", low=0, high=2),
        "bin_lo": Column("float64", low=0.0, high=1.0),
        "bin_hi": Column("float64", low=0.0, high=1.0),
        "hit_rate": Column("float64", low=0.0, high=1.0),
        "count": Column("int64", low=0),
    },
    (*_COMMON, "data", "requests", "rounds"),
    key=("delta", "block_size", "kind", "rank", "bin_lo"),
)

SCHEMAS: Mapping[str, Schema] = {s.kind: s for s in (COST, VALUE, TRACE, BRANCH)}


def validate(kind: str, columns: Columns, provenance: Mapping[str, str]) -> None:
    """Check a table's columns, ranges, words, key and provenance.

    Raises:
        DataError: with the first fault and where it is.
    """
    schema = SCHEMAS[kind]
    missing = [name for name in schema.columns if name not in columns]
    if missing:
        raise DataError(
            f"The {kind} table lacks the column(s) {', '.join(missing)}.",
            f"A {kind} table has: {', '.join(schema.columns)}.",
        )
    lengths = {len(columns[name]) for name in schema.columns}
    if len(lengths) != 1:
        raise DataError(f"Columns of the {kind} table differ in length.", "Write it again.")
    if lengths == {0}:
        raise DataError(f"The {kind} table is empty.", "Collect at least one row.")
    absent = [key for key in schema.provenance if not provenance.get(key)]
    if absent:
        raise DataError(
            f"The {kind} table does not say its {', '.join(absent)}.",
            "Tables carry their provenance; make it with the recguide command.",
        )
    for name, column in schema.columns.items():
        _check_column(kind, name, column, columns[name])
    _check_key(schema, columns)


def _check_column(kind: str, name: str, column: Column, values: Any) -> None:
    if column.type.startswith("list"):
        return
    array = np.asarray(values)
    if column.type != "string" and array.dtype.kind not in "biuf":
        raise DataError(f"{name} of the {kind} table does not hold {column.type}.", "Remake it.")
    if column.words:
        strange = sorted(set(array.tolist()) - set(column.words))
        if strange:
            raise DataError(
                f"The {kind} table has {name} = {strange[0]!r}.",
                f"Known values: {', '.join(column.words)}.",
            )
    if array.dtype.kind == "f" and not column.nullable and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise DataError(f"The {kind} table has {name} = {array[row]} in row {row}.", "Remake it.")
    for bound, bad in ((column.low, np.less), (column.high, np.greater)):
        if bound is not None and bad(array, bound).any():
            row = int(np.flatnonzero(bad(array, bound))[0])
            raise DataError(
                f"The {kind} table has {name} = {array[row]} in row {row} (limit {bound:g}).",
                "Remake the table.",
            )


def _check_key(schema: Schema, columns: Columns) -> None:
    if not schema.key:
        return
    seen: set[tuple[Any, ...]] = set()
    for row, key in enumerate(
        zip(*(np.asarray(columns[name]).tolist() for name in schema.key), strict=True)
    ):
        if key in seen:
            named = ", ".join(f"{n} {v}" for n, v in zip(schema.key, key, strict=True))
            raise DataError(
                f"The {schema.kind} table has two rows for {named} (row {row}).",
                "Keep one of them.",
            )
        seen.add(key)


def provenance(
    model: str, model_hash: str, device: str, source: str, **more: str
) -> dict[str, str]:
    """Provenance of a table made now, with the versions that made it.

    Args:
        model, model_hash: name and config/weights hash of the model.
        device: `cpu-any`, `cpu: <name>`, or a GPU name such as `b200`.
        source: the command or publication the numbers come from.
        more: further keys of the schema (dtype, attention, graph, seed, data, ...).
    """
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    known = {"model": model, "model_hash": model_hash, "device": device, "source": source}
    return {"date": today, **_versions(), **known, **more}


def _versions() -> dict[str, str]:
    found = {}
    for package in ("recguide", "torch", "triton"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found
