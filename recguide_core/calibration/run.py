"""A calibration from prompts to tables: decode, log, resume, fit, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recguide_core.calibration.fitting import Fitted, fit_trace
from recguide_core.calibration.settings import FitSettings, ShadowSettings, stem
from recguide_core.datasets import Prompt
from recguide_core.datasets.benchmarks import check_template, instruction
from recguide_core.errors import DataError, MismatchError
from recguide_core.inventory import place_of
from recguide_core.tables import (
    ANY_CPU,
    SCHEMAS,
    Table,
    append_rows,
    make_table,
    provenance,
    read_rows,
    read_table,
    write_table,
)

if TYPE_CHECKING:
    from recguide_core.calibration.shadow import ShadowPrompt
    from recguide_core.model.checkpoint import Checkpoint
    from recguide_core.model.registry import LoadedModel


@dataclass(frozen=True, slots=True)
class Written:
    """Where the tables of a calibration lie."""

    trace: Path
    value: Path
    branch: Path


def paths(folder: Path, name: str) -> Written:
    """The files of a model and device in `folder`."""
    return Written(*(folder / f"{name}.{kind}.arrow" for kind in ("trace", "value", "branch")))


def collect(
    prompts: Sequence[Prompt],
    settings: ShadowSettings,
    folder: Path,
    *,
    overwrite: bool = False,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """Decode the prompts with every block of the menu and write the trace table.

    Rows are logged as requests end; a run that was killed goes on where it stopped.

    Args:
        on_request: called with requests done and requests in all.

    Raises:
        MismatchError: the log in `folder` was made with another model or other settings.
        DataError: no prompt fits the model.
    """
    import torch

    from recguide_core.model.registry import load_model

    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = load_model(settings.model, device=settings.device, dtype=settings.dtype)
    log = open_log(settings, model.hash, folder, overwrite=overwrite)
    _decode(model, prompts, settings, log, on_request)
    return close_log(log, settings, model.hash)


@dataclass(frozen=True, slots=True)
class Log:
    """The rows of a calibration that is under way.

    Attributes:
        path: JSON lines; trace: the table that they become; done: requests that have ended.
    """

    path: Path
    trace: Path
    done: frozenset[str]


def open_log(
    settings: ShadowSettings, model_hash: str, folder: Path, *, overwrite: bool = False
) -> Log:
    """A fresh log, or the one of an unfinished run with the same settings.

    Raises:
        MismatchError: the log in `folder` was made with another model or other settings.
    """
    check_template(settings.template)
    name = stem(settings.model, place_of(settings.device), settings.engine)
    path = folder / f"{name}.trace.jsonl"
    about = {**asdict(settings), "menu": list(settings.menu), "model_hash": model_hash}
    del about["threads"]
    rows = _resume(path, about, overwrite)
    done = frozenset(row["request"] for row in rows)
    return Log(path, paths(folder, name).trace, done)


def close_log(log: Log, settings: ShadowSettings, model_hash: str, **more: str) -> Table:
    """Turn the log's rows into the trace table, write it and drop the log.

    Raises:
        DataError: there is no row.
    """
    lines = read_rows(log.path)[1:]
    rows = [row for row in lines if not row.get("end")]
    if not rows:
        raise DataError(
            "No round came of these prompts: every answer ended at once or was too short.",
            "Use other prompts or a larger --max-tokens.",
        )
    columns = {key: [row[key] for row in rows] for key in SCHEMAS["trace"].columns}
    about = provenance(
        model=settings.model,
        model_hash=model_hash,
        device=ANY_CPU if settings.device.startswith("cpu") else place_of(settings.device),
        source="recguide calibrate",
        data=",".join(sorted({row["data"] for row in rows})),
        seed=str(settings.seed),
        max_tokens=str(settings.max_tokens),
        template=settings.template,
        dtype=settings.dtype,
        engine=settings.engine,
        **more,
    )
    table = make_table("trace", columns, about)
    write_table(log.trace, table)
    log.path.unlink()
    return table


def refit(path: Path, settings: FitSettings, model_hash: str | None = None) -> tuple[Table, Fitted]:
    """Fit the tables to an existing trace; needs no model and no torch.

    Args:
        model_hash: the model that the trace must belong to, None for any.

    Raises:
        DataError: the trace is missing, malformed or empty.
        MismatchError: it was made with another model.
    """
    trace = read_table(path, "trace")
    made_with = trace.provenance["model_hash"]
    if model_hash is not None and made_with != model_hash:
        raise MismatchError(
            f"The trace {path} was made with model {trace.provenance['model']} ({made_with[:12]}), "
            f"not with the one named ({model_hash[:12]}).",
            "Leave --model out to refit it as it is, or calibrate the model that you use.",
        )
    return trace, fit_trace(trace, settings)


def write_fitted(fitted: Fitted, where: Written) -> None:
    """Write the value and branch tables."""
    write_table(where.value, fitted.value)
    write_table(where.branch, fitted.branch)


def _resume(log: Path, about: dict[str, Any], overwrite: bool) -> list[dict[str, Any]]:
    """Rows of an unfinished run, or a fresh log with what it is about in its first line."""
    old = [] if overwrite else read_rows(log)
    if not old:
        log.unlink(missing_ok=True)
        append_rows(log, [{"about": about}])
        return []
    found = old[0].get("about", {})
    differs = [key for key in about if found.get(key) != about[key]]
    if differs:
        raise MismatchError(
            f"{log} is an unfinished calibration with another {differs[0].replace('_', ' ')}: "
            f"{found.get(differs[0])}, not {about[differs[0]]}.",
            "Finish it with its settings, choose another --out, or pass --overwrite.",
        )
    # A request counts when its end was logged; what a kill cut short is decoded again.
    ended = {row["request"] for row in old if row.get("end")}
    kept = [row for row in old[1:] if row.get("request") in ended]
    log.unlink()
    append_rows(log, [old[0], *kept])
    return [row for row in kept if not row.get("end")]


def _decode(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    settings: ShadowSettings,
    log: Log,
    on_request: Callable[[int, int], None],
) -> None:
    from recguide_core.calibration.shadow import ShadowDecoder
    from recguide_core.engine.machine import EmbeddedMachine

    decoder = ShadowDecoder(
        EmbeddedMachine(model),
        settings.menu,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        batch=settings.batch,
    )
    encoded = {p.name: p for p in encode(model, prompts, settings.template)}
    fitting = [p for p in encoded.values() if decoder.fits(p)]
    waiting = [p for p in fitting if p.name not in log.done]
    finished = len(fitting) - len(waiting)
    on_request(finished, len(fitting))
    for mine in decoder.run(waiting):
        log_request(log.path, mine)
        finished += 1
        on_request(finished, len(fitting))


def log_request(log: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append a request's rows and its end; a request without rows leaves no trace."""
    if rows:
        append_rows(log, [*rows, {"end": True, "request": rows[0]["request"]}])


def encode(
    model: LoadedModel | Checkpoint, prompts: Sequence[Prompt], template: str
) -> list[ShadowPrompt]:
    """Token ids of prompts as bench sends them, named by the hash of the conversation."""
    from recguide_core.calibration.shadow import ShadowPrompt

    if model.tokenizer is None:
        raise DataError(f"{model.name} has no tokenizer.", "Add tokenizer.json to its folder.")
    out = []
    for prompt in prompts:
        messages = [{"role": role, "content": text} for role, text in prompt.messages]
        around = instruction(prompt.dataset, template)
        messages[-1]["content"] = around.replace("{task}", prompt.text)
        if template == "raw":
            text = "\n".join(message["content"] for message in messages)
        else:
            text = model.render(messages)
        ids = np.asarray(model.tokenizer.encode(text), dtype=np.int64)
        out.append(ShadowPrompt(prompt.dataset, prompt.hash, ids))
    return out
