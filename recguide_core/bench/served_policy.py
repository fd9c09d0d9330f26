"""A policy through a SGLang server: what it gains on the wall's clock, beside AR and fixed blocks.

The search of `tune` charges time from the cost table; this is the same comparison with everything
that a server adds. Baselines are those that the search found best or that the recipe names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recguide_core.bench.config import BenchConfig
from recguide_core.bench.run import Watcher, run_bench
from recguide_core.bench.sglang_site import sglang_site
from recguide_core.datasets import Loaded
from recguide_core.tuning.settings import TuneSettings


def measure_served(
    settings: TuneSettings,
    loaded: Loaded,
    judging: Collection[str],
    measured: Sequence[Mapping[str, Any]],
    policy: Path,
    *,
    tp: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Serve the judging prompts at every load with AR, the fixed blocks and the policy.

    Args:
        judging: hashes of the prompts that took no part in tuning; measured: the loads of the
            search, as `Runner.measure` reports them.

    Returns:
        of each load: concurrency, tokens/s, tau and verdict by method, and the gain of recguide
        over the fastest other one.

    Raises:
        RecGuideError: no SGLang, or its server ended.
    """
    prompts = [p for p in loaded.prompts if p.hash in judging]
    config = BenchConfig(
        model=settings.model,
        data=tuple(loaded.datasets),
        methods=("ar", "linear", "recguide"),
        block_sizes=blocks_of(measured),
        concurrency=settings.concurrency,
        requests=max(len(prompts), *settings.concurrency),
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        template=settings.template,
        device=settings.device,
        dtype=_dtype(settings),
        threads=settings.threads,
        policy=str(policy),
        engine=settings.engine,
        tp=tp,
    )
    with sglang_site(config, replace(loaded, prompts=prompts)) as site:
        watcher = Watcher(cell_started=lambda cell, count: progress(f"serving {cell.key}"))
        record = run_bench(config, loaded, site=site, watcher=watcher)
    return [by_load(record["rows"], load) for load in settings.concurrency]


def _dtype(settings: TuneSettings) -> str:
    """A dtype by name: the texts are checked with the embedded engine, which takes no "auto"."""
    if settings.dtype != "auto":
        return settings.dtype
    return "float32" if settings.device == "cpu" else "bfloat16"


def blocks_of(measured: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Fixed blocks that were the best or the recipe's at some load, ascending."""
    names = [m[kind] for m in measured for kind in ("best", "recipe")]
    return tuple(sorted({int(n.split("/")[1]) for n in names if n.startswith("linear/")}))


def by_load(rows: Sequence[Mapping[str, Any]], load: int) -> dict[str, Any]:
    """The cells of one load, by method."""
    cells = {_name(row): row for row in rows if row["concurrency"] == load}
    ours = cells["recguide"]["tps"]
    others = {name: row["tps"] for name, row in cells.items() if name != "recguide" and row["tps"]}
    best = max(others, key=lambda name: others[name])
    return {
        "concurrency": load,
        "methods": {name: row["tps"] for name, row in cells.items()},
        "tau": {name: row["tau"] for name, row in cells.items()},
        "lossless": {name: row["lossless"] for name, row in cells.items()},
        "failed": sum(row["failed"] for row in cells.values()),
        "best": best,
        "over_best": None if ours is None else ours / others[best] - 1.0,
    }


def _name(row: Mapping[str, Any]) -> str:
    block = row["block_size"]
    return str(row["method"]) if block is None else f"{row['method']}/{block}"
