"""Published forward-time profiles (CSV) as cost tables in our schema."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path

from recguide_core.errors import DataError
from recguide_core.policy.devices import ModelSize
from recguide_core.tables.arrow import Table, make_table
from recguide_core.tables.files import digest_json
from recguide_core.tables.schema import COST, Columns

COLUMNS = (
    "concurrency",
    "block_size",
    "mean_prefix_tokens",
    "draft_ms",
    "verify_ms",
    "std_ms",
    "count",
)


def size_hash(size: ModelSize) -> str:
    """Names a model of which only the sizes are known, sha256 of them."""
    return digest_json(asdict(size))


def read_profile(path: Path) -> Columns:
    """Draft and verify rows of a profile: one forward of C requests with B tokens each.

    `std_ms` and `count` of the source pool both kinds; each row keeps the pooled deviation and
    half of the count.

    Raises:
        DataError: missing file, column or number, with the line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            lines = list(csv.DictReader(stream))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    columns: Columns = {name: [] for name in COST.columns}
    for number, line in enumerate(lines, start=2):
        missing = [name for name in COLUMNS if not line.get(name)]
        if missing:
            raise DataError(
                f"{path.name} line {number} lacks {', '.join(missing)}.",
                f"A profile has the columns {', '.join(COLUMNS)}.",
            )
        _add(columns, path, number, line)
    return columns


def _add(columns: Columns, path: Path, number: int, line: dict[str, str]) -> None:
    try:
        requests, block = int(line["concurrency"]), int(line["block_size"])
        prefix, std = float(line["mean_prefix_tokens"]), float(line["std_ms"])
        count = int(line["count"]) // 2
        timed = {kind: float(line[f"{kind}_ms"]) for kind in ("draft", "verify")}
    except ValueError as error:
        raise DataError(f"{path.name} line {number}: {error}.", "Check the file.") from error
    for kind, ms in timed.items():
        row = {
            "kind": kind,
            "requests": requests,
            "query_tokens": requests * block,
            "kv_tokens": round(requests * prefix),
            "block_size": block,
            "branches": 0,
            "mean_ms": ms,
            "std_ms": std,
            "count": count,
            "origin": "measured",
        }
        for name, value in row.items():
            columns[name].append(value)


def profile_table(path: Path, size: ModelSize, device: str, about: dict[str, str]) -> Table:
    """A cost table of a published profile.

    Args:
        about: provenance beyond model and device (date, source, dtype, attention, graph, ...).
    """
    provenance = {"model": size.name, "model_hash": size_hash(size), "device": device, **about}
    return make_table("cost", read_profile(path), provenance)
