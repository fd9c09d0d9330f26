"""`recguide bench`: measure methods over a load, and check that their text equals AR's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from recguide_cli import console
from recguide_cli.commands import bench_options as options


def run(
    ctx: typer.Context,
    words: options.Words = None,
    model: options.Model = "nld-tiny",
    data: options.Data = "demo",
    data_dir: options.DataDir = None,
    column: options.Column = None,
    turns: options.Turns = "last",
    template: options.Template = "plain",
    skip_bad_rows: options.SkipBadRows = False,
    methods: options.Methods = "ar,linear",
    block_size: options.BlockSize = "16",
    concurrency: options.Concurrency = "1,8",
    rate: options.Rate = None,
    arrivals: options.Arrivals = "poisson",
    ramp: options.Ramp = None,
    replay: options.Replay = None,
    speed: options.Speed = "1",
    time_unit: options.TimeUnit = "auto",
    slo_ttft: options.SloTtft = None,
    slo_tpot: options.SloTpot = None,
    requests: options.Requests = None,
    max_tokens: options.MaxTokens = 128,
    warmup: options.Warmup = 2,
    cooldown: options.CooldownRequests = 0,
    ignore_eos: options.IgnoreEos = False,
    seed: options.Seed = 0,
    engine: options.Engine = "embedded",
    tp: options.Tp = 1,
    device: options.Device = "cpu",
    attention_backend: options.AttentionBackend = None,
    dtype: options.Dtype = "float32",
    threads: options.Threads = 0,
    kv_tokens: options.KvTokens = None,
    prefill_chunk: options.PrefillChunk = 512,
    clock: options.Clock = "wall",
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    timeout: options.Timeout = 300.0,
    batching: options.Batching = "ragged",
    policy: options.Policy = None,
    tables: options.Tables = None,
    force: options.Force = False,
    held_out: options.HeldOut = False,
    suite: options.Suite = None,
    simulate: options.Simulate = False,
    gpu: options.Gpu = "b200",
    host: options.Host = "none",
    prompt_tokens: options.PromptTokens = 0,
    waiting: options.Waiting = 1.0,
    traces: options.Traces = None,
    target_tps: options.TargetTps = None,
    target_tpot: options.TargetTpot = None,
    no_check: options.NoCheck = False,
    check: options.Check = None,
    strict_lossless: options.StrictLossless = False,
    bitwise: options.Bitwise = False,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Measures methods over a load and checks that their text equals AR's.

    Every method serves the same requests with C of them in flight. Rows are
    saved as requests finish; each output is compared with plain
    autoregressive decoding, outside the window.

    Files: JSONL with prompt, question, instruction, text or messages; CSV and
    Parquet with such a column; plain text with one prompt a line.
    """
    from recguide_cli.engines import bench_site, measuring_engine
    from recguide_cli.render.bench import BenchView, default_folder
    from recguide_core.bench.config import SERVER, BenchConfig
    from recguide_core.bench.recheck import require_bitwise, require_lossless
    from recguide_core.bench.remote import parse_address
    from recguide_core.bench.run import Output, run_bench
    from recguide_core.datasets import ReadOptions, load_prompts
    from recguide_core.datasets.trace import read_trace

    other = _other_job(ctx, words)
    if other is not None:
        if as_json:
            console.emit_json(other)
        require_lossless(other.get("differences", ()), strict_lossless)
        require_bitwise([other])
        return
    named = console.origins(ctx)
    if base_url is not None:
        # A server is measured as it is, under its own model's name, unless told otherwise.
        model = model if named["model"] != "default" else ""
        methods = methods if named["methods"] != "default" else SERVER
    config = BenchConfig(
        model=model,
        data=tuple(console.names(data, "--data")),
        methods=tuple(console.names(methods, "--methods")),
        block_sizes=tuple(console.integers(block_size, "--block-size")),
        concurrency=tuple(console.integers(concurrency, "--concurrency")),
        rates=() if rate is None else tuple(console.decimals(rate, "--rate")),
        arrivals=arrivals,
        ramp=ramp,
        replay=None if replay is None else str(replay),
        speeds=tuple(console.decimals(speed, "--speed")),
        time_unit=time_unit,
        ttft_limit_ms=slo_ttft,
        tpot_limit_ms=slo_tpot,
        requests=requests,
        max_tokens=max_tokens,
        seed=seed,
        template=template,
        device=device,
        attention_backend=attention_backend,
        dtype=dtype,
        threads=threads,
        kv_tokens=kv_tokens,
        prefill_chunk=prefill_chunk,
        warmup=warmup,
        cooldown=cooldown,
        ignore_eos=ignore_eos,
        check=not no_check,
        bitwise=bitwise,
        clock=clock,
        batching=batching,
        policy=None if policy is None else str(policy),
        tables=None if tables is None else str(tables),
        force=force,
        held_out=held_out,
        base_url=base_url,
        engine=measuring_engine(engine, tp),
        tp=tp,
    )
    loaded = load_prompts(config.data, data_dir, ReadOptions(column, turns, skip_bad_rows))
    if replay is not None:
        loaded.trace = read_trace(replay, time_unit, skip_bad_rows=skip_bad_rows)
    address = None if base_url is None else parse_address(base_url, timeout, api_key)
    folder = out or default_folder()
    with bench_site(config, loaded, address) as site, BenchView(config, loaded) as view:
        record = run_bench(
            config,
            loaded,
            site=site,
            output=Output(folder, resume=resume, overwrite=overwrite),
            watcher=view.watcher(),
            origins={k: v for k, v in named.items() if k != "api_key"},
        )
    view.show(record, folder)
    if as_json:
        console.emit_json(record)
    require_lossless([d for row in record["rows"] for d in row["differences"]], strict_lossless)
    require_bitwise(record["rows"])


def _other_job(ctx: typer.Context, words: list[str] | None) -> dict[str, Any] | None:
    """What the options ask for instead of a run: a comparison, a check or a suite."""
    from recguide_cli.render import runs
    from recguide_cli.suites import SIMULATE, run_suite
    from recguide_core.errors import UsageError

    given = ctx.params
    if words:
        if words[0] != "compare" or len(words) != 3:
            raise UsageError(
                f"'{' '.join(words)}' is nothing that bench does.",
                "Compare two saved runs with: recguide bench compare RUN RUN",
            )
        return runs.compare(Path(words[1]), Path(words[2]))
    if given["check"] is not None:
        named = console.origins(ctx)["model"] != "default"
        model = given["model"] if named else None
        return runs.check(given["check"], model, bitwise=given["bitwise"])
    if given["simulate"] or given["suite"] is not None:
        if given["replay"] is not None:
            raise UsageError(
                "--replay goes to an engine or a server, not to a simulation.",
                "Leave --simulate and --suite out; --clock b200/nld-8b needs no GPU.",
            )
        chosen = {**given, "origins": console.origins(ctx)}
        return run_suite(given["suite"] or SIMULATE, chosen)
    return None
