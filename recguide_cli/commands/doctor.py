"""`recguide doctor`: what this machine has, and why a back end cannot be used."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recguide_cli import console
from recguide_core.errors import DataError

if TYPE_CHECKING:
    from recguide_core.model.checkup import Fault


def run(
    model: Annotated[
        str | None,
        typer.Option(help="Check a model too: bundled name, alias, hub id or folder."),
    ] = None,
    gpu_unproven: Annotated[
        bool,
        typer.Option("--gpu-unproven", help="List what only a GPU can prove, and has not yet."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line on stdout.")] = False,
) -> None:
    """Shows versions, devices and back ends, and why one cannot be used."""
    if gpu_unproven:
        _show_unproven(as_json)
        return
    from recguide_core import inventory
    from recguide_core.tables import shipped_names

    report: dict[str, Any] = {
        "schema": "recguide.doctor/1",
        "versions": inventory.versions(),
        "devices": [
            {"name": d.name, "kind": d.kind, "detail": d.detail} for d in inventory.devices()
        ],
        "back_ends": [
            {"name": b.name, "usable": b.usable, "reason": b.reason} for b in inventory.back_ends()
        ],
        "tables": {kind: shipped_names(kind) for kind in ("cost", "value", "acceptance", "policy")},
    }
    faults = [] if model is None else _faults(model)
    if model is not None:
        report["faults"] = [asdict(fault) for fault in faults]
        if not any(fault.serious for fault in faults):
            report["model"] = _model_report(model)
    _show(report)
    if as_json:
        console.emit_json(report)
    serious = [fault for fault in faults if fault.serious]
    if serious:
        raise DataError(f"{model}: {serious[0].cause}", serious[0].remedy)


def _faults(name: str) -> list[Fault]:
    """Every fault of a model's files; a name that resolves to nothing raises."""
    from recguide_core.model.checkup import check_folder
    from recguide_core.model.registry import resolve

    return check_folder(resolve(name))


def _model_report(name: str) -> dict[str, Any]:
    from recguide_core.model.registry import load_model

    loaded = load_model(name)
    config = loaded.config
    return {
        "name": name,
        "hash": loaded.hash,
        "layers": config.layers,
        "hidden": config.hidden,
        "vocabulary": config.vocab,
        "context": config.max_positions,
        "mask_id": config.mask_id,
        "eos_ids": sorted(config.eos_ids),
        "adapter": loaded.transformer.adapter is not None,
        "chat_template": loaded.tokenizer is not None
        and loaded.tokenizer.template_source is not None,
    }


def _show_unproven(as_json: bool) -> None:
    """What no machine without a GPU can prove, with what would prove it."""
    from recguide_core.kernels import unproven as kernels
    from recguide_core.sglang_plugin import unproven as plugin

    entries = (*kernels.UNPROVEN, *plugin.UNPROVEN)
    console.table(
        "Needs a GPU to prove",
        ("what", "where", "proved by", "CPU test of its inputs"),
        [(e.name, e.function, e.proves, e.input_test) for e in entries],
        left=4,
    )
    if as_json:
        console.emit_json(
            {"schema": "recguide.unproven/1", "entries": [asdict(entry) for entry in entries]}
        )


def _show(report: dict[str, Any]) -> None:
    console.table(
        "Versions",
        ("package", "version"),
        [(name, found or "not installed") for name, found in report["versions"].items()],
        left=2,
    )
    console.table(
        "Devices",
        ("device", "what it is"),
        [(device["name"], device["detail"]) for device in report["devices"]],
        left=2,
    )
    console.table(
        "Back ends",
        ("back end", "usable", "reason"),
        [(b["name"], "yes" if b["usable"] else "no", b["reason"]) for b in report["back_ends"]],
        left=3,
    )
    console.table(
        "Shipped tables",
        ("kind", "names"),
        [(kind, ", ".join(names) or "none") for kind, names in report["tables"].items()],
        left=2,
    )
    if report.get("faults"):
        console.table(
            "Faults of the model's files",
            ("part", "serious", "cause", "remedy"),
            [
                (f["part"], "yes" if f["serious"] else "no", f["cause"], f["remedy"])
                for f in report["faults"]
            ],
            left=4,
        )
    if "model" in report:
        console.table(
            f"Model {report['model']['name']}",
            ("property", "value"),
            [(name, str(value)) for name, value in report["model"].items()],
            left=2,
        )
