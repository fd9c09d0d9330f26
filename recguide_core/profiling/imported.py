"""Cost rows that `scripts/device_check.py` measured on another machine, as a cost table.

The script needs numpy, torch and triton only and writes JSON; this reads its `cost` list, whose
entries have the columns of the cost table, and its `device` record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recguide_core.errors import DataError
from recguide_core.inventory import short_gpu_name
from recguide_core.tables import Table, make_table, read_json
from recguide_core.tables.schema import COST

SCHEMA = "recguide.device_check/1"
REMEDY = "Pass the JSON that scripts/device_check.py wrote."


def import_report(path: Path) -> Table:
    """The cost table of a device report.

    Raises:
        DataError: no such report, or rows that are none of a cost table's.
    """
    report = read_json(path)
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        found = report.get("schema") if isinstance(report, dict) else type(report).__name__
        raise DataError(f"{path} is no device report (schema {found!r}, not {SCHEMA!r}).", REMEDY)
    rows = report.get("cost")
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path} has no timed forwards.", "Run it with --only cost, on the device.")
    columns: dict[str, list[Any]] = {name: [] for name in COST.columns}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}: cost row {number} is no object.", REMEDY)
        absent = [name for name in COST.columns if name not in row]
        if absent:
            raise DataError(f"{path}: cost row {number} lacks {', '.join(absent)}.", REMEDY)
        for name in COST.columns:
            columns[name].append(row[name])
    about = report.get("provenance")
    if not isinstance(about, dict):
        raise DataError(f"{path} does not say where it was measured.", REMEDY)
    known = {key: str(value) for key, value in about.items() if value is not None}
    if "device" in known:
        known["device"] = short_gpu_name(known["device"])
    return make_table("cost", columns, known)
