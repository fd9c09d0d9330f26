"""`recguide bench`: measure methods over a load, and check that their text equals AR's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recguide_cli import console

LOAD, DATA, MODEL, POLICY, RESULT = "Load", "Data", "Model and engine", "Policy", "Result"
SUITE = "Suites and simulation"


def run(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[compare RUN RUN]", help="Compare two saved runs."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(rich_help_panel=MODEL, help="Bundled name, alias (nld-8b), hub id or folder."),
    ] = "nld-tiny",
    data: Annotated[
        str,
        typer.Option(
            rich_help_panel=DATA,
            help="Comma list of sets: demo, gsm8k, math500, humaneval, mbpp, ifeval, aime25, "
            "livecodebench, gpqa, or files (.jsonl .json .csv .parquet .txt).",
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
    column: Annotated[
        str | None,
        typer.Option(rich_help_panel=DATA, help="Column with the prompt (default: guessed)."),
    ] = None,
    turns: Annotated[
        str, typer.Option(rich_help_panel=DATA, help="Of a conversation ask: first, last, all.")
    ] = "last",
    template: Annotated[
        str,
        typer.Option(
            rich_help_panel=DATA,
            help="plain: chat template; instruct: with the benchmark's instruction; raw: neither.",
        ),
    ] = "plain",
    skip_bad_rows: Annotated[
        bool,
        typer.Option("--skip-bad-rows", rich_help_panel=DATA, help="Leave bad rows out, listed."),
    ] = False,
    methods: Annotated[
        str,
        typer.Option(
            rich_help_panel=LOAD,
            help="Comma list: ar, linear, linear:recipe, tidar, dflash, overlap, adaptive, "
            "recguide.",
        ),
    ] = "ar,linear",
    block_size: Annotated[
        str,
        typer.Option(
            rich_help_panel=LOAD,
            help="Comma list of B: one row each for linear, tidar, dflash, overlap.",
        ),
    ] = "16",
    concurrency: Annotated[
        str, typer.Option(rich_help_panel=LOAD, help="Comma list of requests kept in flight.")
    ] = "1,8",
    requests: Annotated[
        int | None,
        typer.Option(rich_help_panel=LOAD, help="Requests per cell (default: max(32, 2 C))."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(rich_help_panel=LOAD, help="Output limit of a request.")
    ] = 128,
    warmup: Annotated[
        int, typer.Option(rich_help_panel=LOAD, help="Requests before the window.")
    ] = 2,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", rich_help_panel=LOAD, help="Go on to the limit, past EOS."),
    ] = False,
    seed: Annotated[
        int, typer.Option(rich_help_panel=LOAD, help="Seed of the choice of prompts.")
    ] = 0,
    device: Annotated[str, typer.Option(rich_help_panel=MODEL, help="cpu or cuda[:n].")] = "cpu",
    dtype: Annotated[
        str, typer.Option(rich_help_panel=MODEL, help="float32, bfloat16 or float16.")
    ] = "float32",
    threads: Annotated[
        int, typer.Option(rich_help_panel=MODEL, help="CPU threads of torch; 0 leaves them.")
    ] = 0,
    kv_tokens: Annotated[
        int | None,
        typer.Option(rich_help_panel=MODEL, help="Tokens of the KV pool (default: enough)."),
    ] = None,
    prefill_chunk: Annotated[
        int, typer.Option(rich_help_panel=MODEL, help="Longest piece of a prompt in one forward.")
    ] = 512,
    clock: Annotated[
        str,
        typer.Option(
            rich_help_panel=MODEL, help="wall, or charge time from a profile, e.g. b200/nld-8b."
        ),
    ] = "wall",
    batching: Annotated[
        str,
        typer.Option(
            rich_help_panel=POLICY, help="Blocks of several sizes: ragged, bucketed or padded."
        ),
    ] = "ragged",
    policy: Annotated[
        Path | None,
        typer.Option(rich_help_panel=POLICY, help="Policy file (default: the one that fits)."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=POLICY,
            help="Folder of policy and tables (default: runs/tables, then the shipped ones).",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", rich_help_panel=POLICY, help="Take a policy that does not fit."),
    ] = False,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", rich_help_panel=POLICY, help="Leave out prompts that made the policy."
        ),
    ] = False,
    suite: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=SUITE, help="A fixed set of runs as one report: method, paper, plan."
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", rich_help_panel=SUITE, help="No model: acceptance model on a clock."
        ),
    ] = False,
    gpu: Annotated[
        str, typer.Option("--gpu", rich_help_panel=SUITE, help="Device to simulate.")
    ] = "b200",
    host: Annotated[
        str,
        typer.Option(
            rich_help_panel=SUITE,
            help="Host time to simulate: none, serving (as in a public table), or ms a step and "
            "ms a request, e.g. 2.5,0.1.",
        ),
    ] = "none",
    prompt_tokens: Annotated[
        int,
        typer.Option(
            rich_help_panel=SUITE,
            help="Simulated prompts; 0 leaves prompt passes out (context 800 each).",
        ),
    ] = 0,
    rate: Annotated[
        float | None,
        typer.Option(rich_help_panel=SUITE, help="Simulated arrivals a second, not a closed loop."),
    ] = None,
    ramp: Annotated[
        float | None,
        typer.Option(rich_help_panel=SUITE, help="Let --rate rise to this and fall back."),
    ] = None,
    waiting: Annotated[
        float,
        typer.Option(rich_help_panel=SUITE, help="Simulated requests per place of a batch."),
    ] = 1.0,
    traces: Annotated[
        Path | None,
        typer.Option(rich_help_panel=SUITE, help="Simulate the requests of this trace table."),
    ] = None,
    target_tps: Annotated[
        float | None,
        typer.Option(rich_help_panel=SUITE, help="plan: tokens a second that a request must get."),
    ] = None,
    target_tpot: Annotated[
        float | None,
        typer.Option(rich_help_panel=SUITE, help="plan: most milliseconds a token."),
    ] = None,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", rich_help_panel=RESULT, help="Do not compare with AR."),
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(rich_help_panel=RESULT, help="Compare the texts of a saved run with AR."),
    ] = None,
    strict_lossless: Annotated[
        bool,
        typer.Option("--strict-lossless", rich_help_panel=RESULT, help="Near-ties fail as well."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=RESULT, help="Folder of the run (default: runs/<date>)."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", rich_help_panel=RESULT, help="Go on with the run in --out."),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", rich_help_panel=RESULT, help="Replace the run in --out."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", rich_help_panel=RESULT, help="One JSON line on stdout."),
    ] = False,
) -> None:
    """Measures methods over a load and checks that their text equals AR's.

    Every method serves the same requests with C of them in flight. Rows are
    saved as requests finish; each output is compared with plain
    autoregressive decoding, outside the window.

    Files: JSONL with prompt, question, instruction, text or messages; CSV and
    Parquet with such a column; plain text with one prompt a line.
    """
    from recguide_cli.render.bench import BenchView, default_folder
    from recguide_core.bench.config import BenchConfig
    from recguide_core.bench.recheck import require_lossless
    from recguide_core.bench.run import Output, run_bench
    from recguide_core.datasets import ReadOptions, load_prompts

    other = _other_job(ctx, words)
    if other is not None:
        if as_json:
            console.emit_json(other)
        require_lossless(other.get("differences", ()), strict_lossless)
        return
    config = BenchConfig(
        model=model,
        data=tuple(console.names(data, "--data")),
        methods=tuple(console.names(methods, "--methods")),
        block_sizes=tuple(console.integers(block_size, "--block-size")),
        concurrency=tuple(console.integers(concurrency, "--concurrency")),
        requests=requests,
        max_tokens=max_tokens,
        seed=seed,
        template=template,
        device=device,
        dtype=dtype,
        threads=threads,
        kv_tokens=kv_tokens,
        prefill_chunk=prefill_chunk,
        warmup=warmup,
        ignore_eos=ignore_eos,
        check=not no_check,
        clock=clock,
        batching=batching,
        policy=None if policy is None else str(policy),
        tables=None if tables is None else str(tables),
        force=force,
        held_out=held_out,
    )
    loaded = load_prompts(config.data, data_dir, ReadOptions(column, turns, skip_bad_rows))
    folder = out or default_folder()
    with BenchView(config, loaded) as view:
        record = run_bench(
            config,
            loaded,
            output=Output(folder, resume=resume, overwrite=overwrite),
            watcher=view.watcher(),
            origins=console.origins(ctx),
        )
    view.show(record, folder)
    if as_json:
        console.emit_json(record)
    require_lossless([d for row in record["rows"] for d in row["differences"]], strict_lossless)


def _other_job(ctx: typer.Context, words: list[str] | None) -> dict[str, Any] | None:
    """What the options ask for instead of a run: a comparison, a check or a suite."""
    from recguide_cli.render import runs
    from recguide_cli.suites import SIMULATE, run_suite
    from recguide_core.errors import UsageError

    options = ctx.params
    if words:
        if words[0] != "compare" or len(words) != 3:
            raise UsageError(
                f"'{' '.join(words)}' is nothing that bench does.",
                "Compare two saved runs with: recguide bench compare RUN RUN",
            )
        return runs.compare(Path(words[1]), Path(words[2]))
    if options["check"] is not None:
        given = console.origins(ctx)["model"] != "default"
        return runs.check(options["check"], options["model"] if given else None)
    if options["simulate"] or options["suite"] is not None:
        chosen = {**options, "origins": console.origins(ctx)}
        return run_suite(options["suite"] or SIMULATE, chosen)
    return None
