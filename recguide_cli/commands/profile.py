"""`recguide profile`: the time of forwards into a cost table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recguide_cli import console

if TYPE_CHECKING:
    from recguide_core.profiling import ProfileSettings
    from recguide_core.tables import Table


def run(
    model: Annotated[
        str, typer.Option(help="Bundled name, alias (nld-8b), hub id or folder.")
    ] = "nld-tiny",
    gpu: Annotated[
        str,
        typer.Option("--gpu", help="cpu, or the CUDA device that must be here (h200, b200, ...)."),
    ] = "cpu",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Fail when the device is not here, instead of listing."),
    ] = False,
    roofline: Annotated[
        bool,
        typer.Option(
            "--roofline", help="Print bytes, FLOPs and floor of each part of a forward instead."
        ),
    ] = False,
    branches: Annotated[int, typer.Option(help="--roofline: branch rows a request.")] = 0,
    report: Annotated[
        Path | None,
        typer.Option("--import", help="Take over the JSON of scripts/device_check.py."),
    ] = None,
    requests: Annotated[
        str, typer.Option(help="Comma list of requests in a forward.")
    ] = "1,2,4,8,16,32,64,128",
    block_size: Annotated[str, typer.Option(help="Comma list of block sizes.")] = "4,8,16,32",
    context: Annotated[
        str, typer.Option(help="Comma list of committed tokens per request.")
    ] = "128,512",
    budget: Annotated[
        float, typer.Option(help="Seconds to measure; the most important shapes come first.")
    ] = 120.0,
    engine: Annotated[
        str, typer.Option(help="Whose forwards: embedded, or sglang (inside its server).")
    ] = "embedded",
    tp: Annotated[int, typer.Option(help="--engine sglang: GPUs that share the model.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 (default: by device).")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of torch; 0 leaves them.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of random weights.")] = 0,
    any_cpu: Annotated[
        bool, typer.Option("--any-cpu", help="Label the table as good for every CPU.")
    ] = False,
    cpu_time: Annotated[
        bool,
        typer.Option("--cpu-time", help="Processor time, for a busy machine; with --threads 1."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File of the table (default: in runs/tables).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line on stdout.")] = False,
) -> None:
    """Measures the time of forwards and writes a cost table.

    On a CUDA machine without the checkpoint it measures random weights of the
    same geometry. Where the named device is not here, it lists the tables that
    ship with RecGuide.
    """
    if roofline:
        from recguide_cli.render.roofline import show_floors

        shapes = [
            (n, b, c)
            for n in console.integers(requests, "--requests")
            for b in console.integers(block_size, "--block-size")
            for c in console.integers(context, "--context")
        ]
        record = show_floors(model, gpu, shapes, branches)
        if as_json:
            console.emit_json(record)
        return
    from recguide_cli.engines import measuring_engine
    from recguide_core.calibration.settings import TABLES, stem
    from recguide_core.profiling import ProfileSettings, import_report
    from recguide_core.tables import write_table

    engine = measuring_engine(engine, tp)
    settings = ProfileSettings(
        model=model,
        gpu=gpu,
        dtype=dtype,
        requests=tuple(console.integers(requests, "--requests")),
        blocks=tuple(console.integers(block_size, "--block-size")),
        contexts=tuple(console.integers(context, "--context")),
        budget_s=budget,
        threads=threads,
        seed=seed,
        any_cpu=any_cpu,
        cpu_time=cpu_time,
    )
    if report is not None:
        table = import_report(report)
    elif not measure and _absent(settings):
        _list_shipped(settings, as_json)
        return
    else:
        table = _measured(settings, engine, tp)
    device = table.provenance["device"]
    path = out or TABLES / f"{stem(table.provenance['model'], device, engine)}.cost.arrow"
    digest = write_table(path, table)
    _show(table, path)
    if as_json:
        console.emit_json(
            {
                "schema": "recguide.profile/1",
                "path": str(path),
                "sha256": digest,
                "rows": len(table),
                "provenance": table.provenance,
            }
        )


def _absent(settings: ProfileSettings) -> bool:
    """The named device cannot be here at all; another CUDA device than named is a mismatch."""
    from recguide_core.profiling.run import cuda_name

    return not settings.on_cpu and cuda_name() is None


def _measured(settings: ProfileSettings, engine: str, tp: int) -> Table:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from recguide_core.calibration.settings import SGLANG

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=console.stderr(), transient=True) as progress:
        task = progress.add_task("loading the model", total=None)

        def show(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        if engine == SGLANG:
            from recguide_core.sglang_plugin import drive

            return drive.profile(settings, tp, show)
        from recguide_core.profiling import profile

        return profile(settings, lambda done, total, point: show(done, total, point.name))


def _list_shipped(settings: ProfileSettings, as_json: bool) -> None:
    """No such device here: what ships instead."""
    from recguide_core.tables import read_table, shipped_names, shipped_path

    found = [read_table(shipped_path(name, "cost"), "cost") for name in shipped_names("cost")]
    console.note(f"There is no CUDA device here to measure '{settings.gpu}' on.")
    console.table(
        "Cost tables that ship with RecGuide",
        ("device", "model", "rows", "date", "source"),
        [
            (t.provenance["device"], t.provenance["model"], str(len(t)), t.provenance["date"],
             t.provenance["source"])
            for t in found
        ],
        left=2,
    )  # fmt: skip
    if as_json:
        rows = [{"path": str(t.path), "rows": len(t), **t.provenance} for t in found]
        console.emit_json({"schema": "recguide.profile/1", "shipped": rows})


def _show(table: Table, path: Path) -> None:
    columns = table.columns
    order = sorted(
        range(len(table)),
        key=lambda i: (columns["requests"][i], columns["query_tokens"][i], columns["kv_tokens"][i]),
    )
    console.table(
        f"{table.provenance['model']} on {table.provenance['device']}",
        ("kind", "requests", "tokens", "KV tokens", "ms", "std", "timed"),
        [
            (
                str(columns["kind"][i]),
                str(columns["requests"][i]),
                str(columns["query_tokens"][i]),
                str(columns["kv_tokens"][i]),
                console.number(float(columns["mean_ms"][i])),
                console.number(float(columns["std_ms"][i])),
                str(columns["count"][i]),
            )
            for i in order
        ],
    )
    console.note(f"Saved in {path}")
