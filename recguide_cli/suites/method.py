"""`recguide bench --suite method`: Tables 1 to 6 on the real engine, time from a clock."""

from __future__ import annotations

from typing import Any

from recguide_cli import console
from recguide_cli.suites.simulated import given, show

CLOCK = "b200/nld-8b"
REQUESTS = 24
MAX_TOKENS = 96
LOADS = "2,8,32,128"


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Run every method of the tables on the prompts that did not make the policy."""
    from recguide_core.bench.config import BenchConfig
    from recguide_core.bench.jobs import make_jobs
    from recguide_core.bench.suites.method import MethodSuite
    from recguide_core.bench.suites.method_report import method_report
    from recguide_core.bench.target import ModelRenders, load_policy
    from recguide_core.datasets import ReadOptions, load_prompts, select
    from recguide_core.engine.drafter import DRAFTER_FOLDER
    from recguide_core.model.registry import load_model
    from recguide_core.simulator.prices import named_clock

    clock = options["clock"] if given(options, "clock") else CLOCK
    loads = options["concurrency"] if given(options, "concurrency") else LOADS
    config = BenchConfig(
        model=options["model"],
        data=tuple(console.names(options["data"], "--data")),
        methods=("recguide",),
        concurrency=tuple(console.integers(loads, "--concurrency")),
        requests=options["requests"] or REQUESTS,
        max_tokens=options["max_tokens"] if given(options, "max_tokens") else MAX_TOKENS,
        seed=options["seed"],
        clock=clock,
        policy=options["policy"] and str(options["policy"]),
        tables=options["tables"] and str(options["tables"]),
        force=options["force"],
    )
    model = load_model(config.model)
    tuned = load_policy(model, config)
    loaded = load_prompts(config.data, options["data_dir"], ReadOptions())
    unseen = [p for p in loaded.prompts if p.hash not in tuned.prompts]
    console.note(f"{len(unseen)} of {len(loaded.prompts)} prompts did not make the policy")
    chosen = [
        prompt
        for name in loaded.datasets
        for prompt in select(
            [p for p in unseen if p.dataset == name], config.requests or REQUESTS, config.seed
        )
    ]
    jobs = make_jobs(
        chosen,
        ModelRenders(model),
        {},
        raw=False,
        max_tokens=config.max_tokens,
        context=model.config.max_positions,
    )
    record = MethodSuite(
        model=model,
        jobs=jobs,
        guidance=tuned.guidance,
        clock=lambda padded: named_clock(clock, padded=padded),
        progress=console.note,
        loads=config.concurrency,
        entropy_positions=tuned.positions,
        drafter=model.folder is not None and (model.folder / DRAFTER_FOLDER).is_dir(),
    ).run()
    return show(method_report(record), options["out"])
