"""`bench --check RUN`: the lossless check on a saved run, with the evidence saved beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from recguide_core.bench.config import BenchConfig
from recguide_core.bench.rows import bitwise_counts, differences, verdict_counts, verdict_of
from recguide_core.bench.store import read_run
from recguide_core.errors import DataError, MismatchError, RecGuideError
from recguide_core.tables import write_json

SCHEMA = "recguide.check/1"
FILE = "check.json"


class LosslessError(RecGuideError):
    """A text that is not AR's: exit code 1."""


def check_run(
    folder: Path,
    model_name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    bitwise: bool = False,
) -> dict[str, Any]:
    """Replay AR for every output of a saved run and classify it.

    Args:
        folder: of the run; `check.json` is written into it.
        model_name: where the model lies now, if not where the run found it.
        progress: told how many outputs of how many are done.
        bitwise: refuse a run that was not made to be compared bit for bit.

    Raises:
        DataError: no run there, or no finished request in it.
        MismatchError: the model is not the one that made the run.
    """
    from recguide_core.bench.target import Reference, judge
    from recguide_core.model.registry import load_model

    settings, rows, _ = read_run(folder)
    rows = [row for row in rows if row.ok and row.measured]
    if not rows:
        raise DataError(f"{folder} has no finished request.", "Finish the run first: --resume")
    config = config_of(settings["settings"])
    if bitwise and not config.bitwise:
        raise MismatchError(
            f"{folder} was not measured with --bitwise, so it keeps no bits to compare.",
            "Measure again with --bitwise, or check without it.",
        )
    model = load_model(model_name or config.model, device=config.device, dtype=config.dtype)
    if model.hash != settings["model_hash"]:
        raise MismatchError(
            f"{folder} was made with model {settings['model_hash']}, not {model.hash}.",
            "Name the model that made it: --model FOLDER",
        )
    reference = Reference(model, config)
    judge(reference, rows, progress)
    record = {
        "schema": SCHEMA,
        "run": str(folder),
        "model_hash": model.hash,
        "verdict": verdict_of(rows),
        "counts": verdict_counts(rows),
        "differences": differences(rows),
        "bitwise": bitwise_counts(rows),
    }
    write_json(folder / FILE, record)
    return record


def config_of(settings: dict[str, Any]) -> BenchConfig:
    """The settings of a saved run; unknown ones of another version are passed over."""
    known = BenchConfig.__dataclass_fields__
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in settings.items() if k in known
    }
    return BenchConfig(**values)


def require_bitwise(rows: Iterable[dict[str, Any]]) -> None:
    """Raise for decisions that are not AR's bit for bit.

    Args:
        rows: records with `bitwise` counts, None where nothing was compared.

    Raises:
        LosslessError: naming how many outputs differ.
    """
    found = [row["bitwise"] for row in rows if row.get("bitwise")]
    differing = sum(counts["differing"] for counts in found)
    if differing:
        raise LosslessError(
            f"{differing} of {sum(counts['outputs'] for counts in found)} outputs are not AR's bit "
            "for bit.",
            "Their rows say where (bits_differ); the bitwise mode promises equality, so report it.",
        )


def require_lossless(found: Iterable[dict[str, Any]], strict: bool) -> None:
    """Raise for texts that are not AR's.

    Args:
        found: records of `rows.differences`; strict: near-ties fail as well.

    Raises:
        LosslessError: naming the first and how many there are.
    """
    wrong = [d for d in found if d["verdict"] == "different" or strict]
    if not wrong:
        return
    first = wrong[0]
    gap = "" if first["gap"] is None else f", {first['gap']:.2g} below the best"
    raise LosslessError(
        f"{len(wrong)} outputs differ from AR; the first is {first['key']} at token "
        f"{first['position']}: AR has {first['expected']}, it has {first['got']}{gap}.",
        "Every difference is listed in the run's folder; plain AR is --methods ar.",
    )
