"""Where the tables that ship with RecGuide lie.

Files are flat, `<place>-<model>.<artefact>`: `b200-nld-8b.cost.arrow`. A name such as
`b200/nld-8b` (device and model) finds them.
"""

from __future__ import annotations

from pathlib import Path

import recguide_core
from recguide_core.errors import DataError, nearest

SUFFIX = {
    "cost": ".cost.arrow",
    "value": ".value.arrow",
    "trace": ".trace.arrow",
    "branch": ".branch.arrow",
    "acceptance": ".acceptance.json",
    "policy": ".policy.json",
}


def shipped_folder() -> Path:
    """The folder of the shipped tables, beside the package in a checkout and in a wheel."""
    beside = Path(recguide_core.__path__[0]).parent
    # A wheel installs them under a name of our own: `tables` belongs to PyTables.
    installed = beside / "recguide_tables"
    return installed if installed.is_dir() else beside / "tables"


def shipped_names(artefact: str) -> list[str]:
    """Names (`<device>-<model>`) for which this artefact ships, sorted."""
    suffix = SUFFIX[artefact]
    return sorted(p.name.removesuffix(suffix) for p in shipped_folder().glob(f"*{suffix}"))


def shipped_path(name: str, artefact: str) -> Path:
    """Path of a shipped artefact, e.g. `("b200/nld-8b", "cost")`.

    Raises:
        DataError: no such file; the remedy names the nearest.
    """
    path = shipped_folder() / f"{name.replace('/', '-')}{SUFFIX[artefact]}"
    if not path.is_file():
        raise DataError(
            f"No {artefact} table for '{name}' ships with RecGuide.",
            nearest(name.replace("/", "-"), shipped_names(artefact)),
        )
    return path
