"""From a policy file and its tables to the `Guidance` that planners use, and back. No torch.

A policy names the content hashes of the tables that it was tuned with; it works with no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide_core.calibration.settings import EMBEDDED, SGLANG, TABLES, stem
from recguide_core.engine.guidance import Guidance
from recguide_core.errors import DataError, MismatchError
from recguide_core.inventory import cpu_name
from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.signals import decision_limit
from recguide_core.policy.value import ValueTable
from recguide_core.tables import (
    PolicyFile,
    Table,
    check_fit,
    check_policy,
    read_policy,
    read_table,
    shipped_folder,
)
from recguide_core.tables.shipped import SUFFIX
from recguide_core.tuning.costs import cost_model

KINDS = ("value", "branch", "cost")


@dataclass(frozen=True, slots=True)
class Tuned:
    """A policy ready for use.

    Attributes:
        guidance: tables and knobs; positions: decisions that e_t averages over.
        policy: the file behind it; notes: one-line remarks on where things came from.
    """

    guidance: Guidance
    positions: int
    policy: PolicyFile
    notes: list[str]

    @property
    def prompts(self) -> frozenset[str]:
        """Hashes of the prompts that the tables and the policy were made with."""
        return frozenset(self.policy.provenance.get("prompts", ()))


def find(name: str, artefact: str, folder: Path | None = None) -> Path:
    """An artefact of the user's, else the shipped one.

    Args:
        name: as `stem` makes it, e.g. `cpu-nld-tiny`; folder: where to look first, `runs/tables`
            by default.

    Raises:
        DataError: neither exists.
    """
    file = f"{name}{SUFFIX[artefact]}"
    places = [folder or TABLES, shipped_folder()]
    for place in places:
        if (place / file).is_file():
            return place / file
    command = {"cost": "profile", "policy": "tune"}.get(artefact, "calibrate")
    if name.endswith(f"-{SGLANG}"):
        command += f" --engine {SGLANG}"
    raise DataError(
        f"There is no {artefact} {'file' if artefact == 'policy' else 'table'} {file} in "
        f"{places[0]}, and none ships.",
        f"Make it with `recguide {command}`.",
    )


def find_policy(model: str, device: str, engine: str, folder: Path | None = None) -> Path:
    """The policy of a model on a device, made with this engine or else with the embedded one.

    Raises:
        DataError: there is none.
    """
    try:
        return find(stem(model, device, engine), "policy", folder)
    except DataError:
        return find(stem(model, device), "policy", folder)


def load_tuned(
    model: str,
    model_hash: str,
    device: str,
    *,
    policy: Path | None = None,
    folder: Path | None = None,
    force: bool = False,
    engine: str = EMBEDDED,
) -> Tuned:
    """The policy for a model on a device, with its tables.

    Args:
        engine: whose policy is wanted; another engine than the embedded one takes that one's
            where it has none of its own.
        policy: a policy file; None looks in `folder` and then among the shipped ones.
        folder: where tables are looked for first, beside the policy file by default.

    Raises:
        DataError: a file is missing or malformed.
        MismatchError: it was tuned for another model or device, or with other tables; `force`
            turns these into notes.
    """
    path = policy or find_policy(model, device, engine, folder)
    file = read_policy(path)
    notes = check_policy(file, {"model_hash": model_hash}, force)
    tables = read_tables(file, folder or path.parent, force, notes)
    for kind in KINDS:
        # A clock's cost table belongs to another device and model on purpose.
        if kind == "cost" and file.provenance.get("clock"):
            continue
        where = _named(device) if kind == "cost" else None
        notes += check_fit(tables[kind], model_hash, where, force)
    return Tuned(as_guidance(file, tables), positions_of(file), file, notes)


def _named(device: str) -> str:
    """The device as tables name it: a CPU by its model."""
    return f"cpu: {cpu_name()}" if device == "cpu" else device


def read_tables(file: PolicyFile, folder: Path, force: bool, notes: list[str]) -> dict[str, Table]:
    """The value, branch and cost table that a policy names, checked against its hashes."""
    names: Mapping[str, str] = file.provenance.get("tables", {})
    tables = {}
    for kind in KINDS:
        if kind not in names:
            raise DataError(
                f"The policy file {file.path} does not name its {kind} table.",
                "Make it with `recguide tune`.",
            )
        table = read_table(find(names[kind], kind, folder), kind)
        if table.digest != file.provenance.get(f"{kind}_hash"):
            text = (
                f"The policy {file.path} was tuned with another {kind} table than {table.path} "
                f"({str(file.provenance.get(f'{kind}_hash'))[:12]}, not {table.digest[:12]})."
            )
            if not force:
                raise MismatchError(text, "Run `recguide tune` again, or pass --force.")
            notes.append(text)
        tables[kind] = table
    return tables


def as_guidance(file: PolicyFile, tables: Mapping[str, Table]) -> Guidance:
    """Join a policy's settings and its tables."""
    settings = file.settings
    try:
        rule = BranchRule(
            float(settings["delta"]), int(settings["corrections"]), bool(settings["continuation"])
        )
        return Guidance(
            value=ValueTable.from_columns(tables["value"].columns),
            cost=cost_model(tables["cost"]),
            rho={int(c): float(rho) for c, rho in settings["rho"].items()},
            branches=BranchTable.from_columns(tables["branch"].columns, rule.delta),
            menu=tuple(int(b) for b in settings["menu"]),
            rule=rule,
            block=int(settings["block"]),
            rate={int(c): float(rate) for c, rate in settings.get("rate", {}).items()},
            overlap={
                int(c): {int(b): (float(h), float(rows)) for b, (h, rows) in at.items()}
                for c, at in settings.get("overlap", {}).items()
            },
            hashes={"policy": file.digest, **{k: t.digest for k, t in tables.items()}},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"The policy file {file.path} or a table of it is malformed: {error}.",
            "Make it with `recguide tune`.",
        ) from error


def positions_of(file: PolicyFile) -> int:
    """Most decisions that e_t averages over under this policy."""
    setting: Any = file.settings.get("entropy_positions", "all")
    menu = [int(b) for b in file.provenance.get("value_menu", file.settings["menu"])]
    return decision_limit("all" if setting == "all" else int(setting), menu)
