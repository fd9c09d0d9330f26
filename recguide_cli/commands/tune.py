"""`recguide tune`: choose delta, block, branches and rho, and measure what they gain."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from recguide_cli import console

TABLES, DATA, POLICY, RESULT = "Tables", "Data", "Policy", "Result"


def run(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Option(help="Bundled name, alias (nld-8b), hub id or folder.")
    ] = "nld-tiny",
    tables: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=TABLES,
            help="Folder of profile's and calibrate's tables (default: runs/tables).",
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(rich_help_panel=TABLES, help="Trace table, with its value table beside it."),
    ] = None,
    cost: Annotated[
        Path | None, typer.Option(rich_help_panel=TABLES, help="Cost table of this device.")
    ] = None,
    clock: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=TABLES, help="Tune for another device's clock, e.g. b200/nld-8b."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=DATA,
            help="Comma list of sets for the on-policy runs (default: those of the trace).",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="RECGUIDE_DATA_DIR",
            rich_help_panel=DATA,
            help="Folder with the benchmarks' JSONL files.",
        ),
    ] = None,
    requests: Annotated[
        int,
        typer.Option(
            rich_help_panel=DATA, help="Prompts that measure the gain; as many others tune rho."
        ),
    ] = 24,
    max_tokens: Annotated[
        int, typer.Option(rich_help_panel=DATA, help="Output limit of a request.")
    ] = 96,
    seed: Annotated[
        int, typer.Option(rich_help_panel=DATA, help="Seed of the choice of prompts.")
    ] = 0,
    concurrency: Annotated[
        str,
        typer.Option(rich_help_panel=POLICY, help="Comma list of loads to run on-policy."),
    ] = "1,8,32",
    iterations: Annotated[
        int, typer.Option(rich_help_panel=POLICY, help="On-policy corrections of rho.")
    ] = 2,
    menu: Annotated[
        str, typer.Option(rich_help_panel=POLICY, help="Blocks to choose from; 1 is plain AR.")
    ] = "1,4,8,16,32",
    engine: Annotated[
        str, typer.Option(help="Whose tables and recordings: embedded, or sglang.")
    ] = "embedded",
    tp: Annotated[int, typer.Option(help="--engine sglang: GPUs that share the model.")] = 1,
    no_served: Annotated[
        bool,
        typer.Option("--no-served", help="--engine sglang: do not run the policy in a server."),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda[:n].")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int, typer.Option(help="CPU threads of torch; 0 leaves them.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=RESULT, help="Policy file (default: beside the tables)."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=RESULT, help="One JSON line on stdout."),
    ] = False,
) -> None:
    """Chooses delta, block, branches and rho, and measures what they gain.

    Searches the trace first, records what the model answers along some texts,
    then runs the policy in the engine's loop on these recordings with time
    charged from the cost table, beside plain AR and every fixed block. Gains
    are measured on prompts that took no part in any choice. With --engine
    sglang the policy is then served by SGLang too, on the wall's clock.
    """
    from recguide_cli.engines import dtype_for, measuring_engine, recorder
    from recguide_cli.render.tune import show, watch
    from recguide_core.calibration.run import encode
    from recguide_core.calibration.settings import SGLANG
    from recguide_core.datasets import load_prompts, select
    from recguide_core.tuning.inputs import default_policy_path, read_inputs, recording_path
    from recguide_core.tuning.run import check_inputs, tune, write
    from recguide_core.tuning.settings import TuneSettings

    engine = measuring_engine(engine, tp)
    settings = TuneSettings(
        model=model,
        concurrency=tuple(console.integers(concurrency, "--concurrency")),
        requests=requests,
        max_tokens=max_tokens,
        iterations=iterations,
        menu=tuple(console.integers(menu, "--menu")),
        seed=seed,
        device=device,
        dtype=dtype_for(ctx, engine),
        threads=threads,
        engine=engine,
    )
    inputs = read_inputs(settings, folder=tables, trace=traces, cost=cost, clock=clock)
    named = console.names(data or inputs.trace.provenance["data"], "--data")
    data_sets = load_prompts(named, data_dir)
    prompts = data_sets.prompts
    model_files, record = recorder(settings, tp)
    check_inputs(inputs, model_files.hash)
    # Enough candidates that some have not been calibrated on.
    few = select(prompts, min(len(prompts), 16 * requests), seed + 1)
    path = out or default_policy_path(settings, inputs, tables)
    with watch() as (progress, on_request):
        result = tune(
            settings,
            inputs,
            model_files.hash,
            encode(model_files, few, settings.template),
            partial(
                record,
                max_tokens=max_tokens,
                path=recording_path(settings, inputs, tables),
                on_request=on_request,
            ),
            progress,
        )
        digest = write(result, path)
        if engine == SGLANG and clock is None and not no_served:
            from recguide_core.bench.served_policy import measure_served

            result.report["served"] = measure_served(
                settings,
                data_sets,
                result.judging,
                result.report["measured"],
                path,
                tp=tp,
                progress=progress,
            )
    show(result.report, path)
    if as_json:
        console.emit_json({**result.report, "policy": str(path), "policy_hash": digest})
