"""The policy file: what `recguide tune` chose, and the hashes of what it chose from.

JSON, hashed over its content. Chain: profile -> calibrate -> tune -> serve / bench; every
artefact names the hashes of its inputs, so that a mismatch is an error with a remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide_core.errors import DataError, MismatchError
from recguide_core.tables.files import digest_json, read_json, write_json

POLICY_SCHEMA = "recguide.policy/1"
_FAMILY = POLICY_SCHEMA.rpartition("/")[0] + "/"

REQUIRED = ("model", "model_hash", "device", "cost_hash", "value_hash", "settings")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """Settings of a policy with provenance.

    Attributes:
        settings: the knobs (delta, block menu, entropy positions, rho per C, overlap rule ...);
            their meaning belongs to the policy.
        provenance: model, model_hash, device, cost_hash, value_hash and whatever else tells
            how it was made (prompt hashes, expected gain).
        digest: sha256 of settings and provenance.
    """

    settings: dict[str, Any]
    provenance: dict[str, Any]
    digest: str
    path: Path | None = None


def write_policy(path: Path, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """Write a policy file whole and return its content hash.

    Raises:
        DataError: the provenance lacks a required key.
    """
    body = {"schema": POLICY_SCHEMA, **provenance, "settings": dict(settings)}
    _check(path, body)
    digest = digest_json(body)
    write_json(path, {**body, "sha256": digest})
    return digest


def read_policy(path: Path) -> PolicyFile:
    """Read and check a policy file.

    Raises:
        DataError: missing, malformed, edited by hand (hash), or of another schema version.
    """
    raw = read_json(path)
    version = str(raw.get("schema")) if isinstance(raw, dict) else ""
    if version.startswith(_FAMILY) and version != POLICY_SCHEMA:
        raise DataError(
            f"{path} has the version {version}; this recguide reads {POLICY_SCHEMA}.",
            "Make it again with `recguide tune`, or use the version that wrote it.",
        )
    if not isinstance(raw, dict) or version != POLICY_SCHEMA:
        raise DataError(f"{path} is not a {POLICY_SCHEMA} file.", "Make it with `recguide tune`.")
    body = {key: value for key, value in raw.items() if key != "sha256"}
    _check(path, body)
    if digest_json(body) != raw.get("sha256"):
        raise DataError(
            f"{path} was changed after it was written (hash differs).",
            "Run `recguide tune` again.",
        )
    inside = {k: v for k, v in body.items() if k not in ("schema", "settings")}
    return PolicyFile(body["settings"], inside, raw["sha256"], path)


def check_policy(policy: PolicyFile, expected: Mapping[str, str], force: bool = False) -> list[str]:
    """Compare provenance with what is in use (`model_hash`, `cost_hash`, `value_hash`, ...).

    Returns:
        One note per difference (only with `force`).

    Raises:
        MismatchError: a difference, unless `force`.
    """
    notes = [
        f"The policy file was made for {key.replace('_', ' ')} "
        f"{str(policy.provenance.get(key))[:12]}, not {value[:12]}."
        for key, value in expected.items()
        if policy.provenance.get(key) != value
    ]
    if notes and not force:
        raise MismatchError(notes[0], "Run `recguide tune` for this setup, or pass --force.")
    return notes


def _check(path: Path, body: Mapping[str, Any]) -> None:
    missing = [key for key in REQUIRED if not body.get(key)]
    if missing:
        raise DataError(
            f"The policy file {path} does not say its {', '.join(missing)}.",
            "Make it with `recguide tune`.",
        )
