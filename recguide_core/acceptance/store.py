"""Acceptance models as JSON files with provenance and a hash."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.acceptance.fit import AcceptanceModel, CategoryLaw
from recguide_core.acceptance.runs import RunLaw
from recguide_core.errors import DataError
from recguide_core.tables.files import digest_json, read_json, write_json

SCHEMA = "recguide.acceptance/1"


def save_model(path: Path, model: AcceptanceModel, provenance: dict[str, str]) -> str:
    """Write the model whole; returns its content hash."""
    body = {"schema": SCHEMA, "provenance": provenance, "model": _plain(asdict(model))}
    digest = digest_json(body)
    write_json(path, {**body, "sha256": digest})
    return digest


def load_model(path: Path) -> tuple[AcceptanceModel, dict[str, str], str]:
    """The model, its provenance and content hash.

    Raises:
        DataError: missing, malformed, edited, or of another schema version.
    """
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise DataError(f"{path} is not a {SCHEMA} file.", "Build it with scripts/build_tables.py.")
    body = {key: value for key, value in raw.items() if key != "sha256"}
    if digest_json(body) != raw.get("sha256"):
        raise DataError(f"{path} was changed after it was written (hash differs).", "Remake it.")
    try:
        model = dict(raw["model"])
        model["overall"] = _law(model["overall"])
        model["categories"] = tuple(
            CategoryLaw(**{**c, "runs": _law(c["runs"])}) for c in model["categories"]
        )
        return AcceptanceModel(**model), raw["provenance"], raw["sha256"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} lacks a part of the model ({error}).", "Remake it.") from error


def _law(raw: dict[str, Any]) -> RunLaw:
    return RunLaw(raw["tilt"], raw["hazard"], np.array(raw["chain"], np.float64))


def _plain(value: Any) -> Any:
    """NumPy out of nested dictionaries; floats keep all their digits."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.floating):
        return float(value)
    return value
