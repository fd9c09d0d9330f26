"""`recguide calibrate`: learn what every block size would accept, from shadow rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide_cli import console

if TYPE_CHECKING:
    from recguide_core.calibration.settings import ShadowSettings
    from recguide_core.datasets import Prompt

DATA, MODEL, FIT, RESULT = "Data", "Model", "Fit", "Result"


def run(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Option(rich_help_panel=MODEL, help="Bundled name, alias (nld-8b), hub id or folder."),
    ] = "nld-tiny",
    data: Annotated[
        str,
        typer.Option(
            rich_help_panel=DATA,
            help="Comma list of sets (demo, gsm8k, gsm8k_train, mbpp, ...) or files.",
        ),
    ] = "demo",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="RECGUIDE_DATA_DIR",
            rich_help_panel=DATA,
            help="Folder with the benchmarks' JSONL files.",
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option(rich_help_panel=DATA, help="Prompts to decode, the sets taking turns.")
    ] = 96,
    max_tokens: Annotated[
        int, typer.Option(rich_help_panel=DATA, help="Output limit of a request.")
    ] = 192,
    template: Annotated[
        str,
        typer.Option(
            rich_help_panel=DATA,
            help="plain: chat template; instruct: with the benchmark's instruction; raw: neither.",
        ),
    ] = "plain",
    seed: Annotated[
        int, typer.Option(rich_help_panel=DATA, help="Seed of prompts and exploration.")
    ] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FIT, help="Fit this trace table again; needs no model and no torch."
        ),
    ] = None,
    menu: Annotated[
        str, typer.Option(rich_help_panel=FIT, help="Comma list of block sizes; 1 is plain AR.")
    ] = "1,4,8,16,32",
    entropy_positions: Annotated[
        str,
        typer.Option(
            rich_help_panel=FIT, help="Decisions behind a round's entropy: all, or a number."
        ),
    ] = "all",
    bins: Annotated[
        int, typer.Option(rich_help_panel=FIT, help="Quantile bins of certainty per history.")
    ] = 24,
    folds: Annotated[
        int, typer.Option(rich_help_panel=FIT, help="Folds of prompts for held-out quality.")
    ] = 5,
    batch: Annotated[
        int, typer.Option(rich_help_panel=MODEL, help="Requests decoded at once.")
    ] = 16,
    engine: Annotated[
        str,
        typer.Option(rich_help_panel=MODEL, help="Whose rounds: embedded, or sglang."),
    ] = "embedded",
    tp: Annotated[
        int,
        typer.Option(rich_help_panel=MODEL, help="--engine sglang: GPUs that share the model."),
    ] = 1,
    device: Annotated[str, typer.Option(rich_help_panel=MODEL, help="cpu or cuda[:n].")] = "cpu",
    dtype: Annotated[
        str, typer.Option(rich_help_panel=MODEL, help="float32, bfloat16 or float16.")
    ] = "float32",
    threads: Annotated[
        int, typer.Option(rich_help_panel=MODEL, help="CPU threads of torch; 0 leaves them.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=RESULT, help="Folder of the tables (default: runs/tables)."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", rich_help_panel=RESULT, help="Drop an unfinished calibration."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=RESULT, help="One JSON line on stdout."),
    ] = False,
) -> None:
    """Learns what every block size would accept, from shadow rounds.

    Each round drafts and verifies every block of the menu from the same state
    and commits one at random. Writes a trace, a value and a branch table; a
    run that was stopped goes on where it was.
    """
    from recguide_cli.engines import dtype_for, measuring_engine
    from recguide_cli.render.calibrate import show, watch
    from recguide_core.calibration.run import paths, refit, write_fitted
    from recguide_core.calibration.settings import (
        EMBEDDED,
        TABLES,
        FitSettings,
        ShadowSettings,
        stem,
    )
    from recguide_core.datasets import load_prompts, select
    from recguide_core.inventory import place_of

    fit = FitSettings(entropy_positions, bins, folds)
    if traces is not None:
        named = console.origins(ctx)["model"] == "flag"
        trace, fitted = refit(traces, fit, _hash_of(model) if named else None)
        folder = out or traces.parent
        about = trace.provenance
        name = stem(about["model"], about["device"], about.get("engine", EMBEDDED))
    else:
        engine = measuring_engine(engine, tp)
        settings = ShadowSettings(
            model=model,
            requests=requests,
            max_tokens=max_tokens,
            menu=tuple(console.integers(menu, "--menu")),
            batch=batch,
            seed=seed,
            template=template,
            device=device,
            dtype=dtype_for(ctx, engine),
            threads=threads,
            engine=engine,
        )
        loaded = load_prompts(console.names(data, "--data"), data_dir)
        chosen = select(loaded.prompts, min(requests, len(loaded.prompts)), seed)
        folder, name = out or TABLES, stem(model, place_of(device), engine)
        with watch() as on_request:
            _collect(chosen, settings, folder, tp, overwrite, on_request)
        trace, fitted = refit(paths(folder, name).trace, fit)
    where = paths(folder, name)
    write_fitted(fitted, where)
    plot = show(fitted, where)
    if as_json:
        files = {k: str(getattr(where, k)) for k in ("trace", "value", "branch")}
        hashes = {
            "trace": trace.digest,
            "value": fitted.value.digest,
            "branch": fitted.branch.digest,
        }
        plots = [str(plot)] if plot else []
        console.emit_json({**fitted.report, "files": files, "hashes": hashes, "plots": plots})


def _collect(
    prompts: Sequence[Prompt],
    settings: ShadowSettings,
    folder: Path,
    tp: int,
    overwrite: bool,
    on_request: Callable[[int, int], None],
) -> None:
    """Rounds of the embedded model, or of the one that SGLang serves."""
    from recguide_core.calibration.settings import SGLANG

    if settings.engine == SGLANG:
        from recguide_core.sglang_plugin import drive

        drive.collect(prompts, settings, folder, tp=tp, overwrite=overwrite, on_request=on_request)
        return
    from recguide_core.calibration.run import collect

    collect(prompts, settings, folder, overwrite=overwrite, on_request=on_request)


def _hash_of(model: str) -> str:
    from recguide_core.model.registry import resolve
    from recguide_core.model.weights import content_hash

    return content_hash(resolve(model))
