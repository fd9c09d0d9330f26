"""The engine's own loop over device-resident rounds, for the device check.

The check must run with numpy, torch and triton alone, so the engine is put together here from its
parts, on a model of random weights. Joins engine and kernels, like `replayed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from recguide_core.engine.core import EngineCore
from recguide_core.engine.fused_runner import FusedRunner
from recguide_core.engine.planners import ArPlanner, LinearPlanner, Planner
from recguide_core.engine.planners_overlap import OverlapPlanner, TidarPlanner
from recguide_core.engine.resident import ResidentLoop
from recguide_core.engine.settings import EngineSettings
from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.device_forward import Pools, geometry_of
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.ops import RoundOps
from recguide_core.kernels.resident_probe import self_test
from recguide_core.kernels.resident_rounds import ResidentRounds
from recguide_core.kernels.round_state import BRANCHES
from recguide_core.kvcache import KVPool
from recguide_core.model.config import ModelConfig
from recguide_core.model.transformer import Transformer
from recguide_core.policy.branches import BranchRule
from recguide_core.records import Request, Sampling

EVERYWHERE = BranchRule(delta=2.0)
"""Finds every position risky: branches in every round."""
FILTERED = Sampling(temperature=0.9, top_k=20, top_p=0.9, seed=5)


@dataclass(frozen=True, slots=True)
class _Bare:
    """A model without a folder, a tokenizer or a name."""

    config: ModelConfig
    transformer: Transformer


def engine_rounds(bench: Bench, transformer: Transformer) -> None:
    """Rounds that the engine runs resident: replayed as eager, and beside its host loop.

    Replayed and eager rounds launch the same kernels, so they must agree to the token. The host
    loop packs for other buckets, where bf16 may tip a near-tie: its agreement is reported. The dry
    run, which replays nothing, must agree with the host loop.
    """
    block = 3 if bench.tiny else 8
    methods: list[tuple[str, Callable[[], Planner], Sampling]] = [
        ("linear", lambda: LinearPlanner(block), Sampling()),
        ("overlap", lambda: OverlapPlanner(block, EVERYWHERE), Sampling()),
        ("ar", ArPlanner, Sampling()),
        ("tidar", lambda: TidarPlanner(block), Sampling()),
        ("linear, filtered sampling", lambda: LinearPlanner(block), FILTERED),
    ]
    for name, planner, sampling in methods[1:2] if bench.tiny else methods:
        if bench.spent:
            return
        _compare(bench, transformer, name, planner, sampling)


def _compare(
    bench: Bench,
    transformer: Transformer,
    name: str,
    planner: Callable[[], Planner],
    sampling: Sampling,
) -> None:
    cache = bench.graphs()
    replayed, seconds, why = _answers(bench, transformer, planner(), sampling, cache)
    host, host_s, _ = _answers(
        bench, transformer, planner(), sampling, bench.graphs(), resident=False
    )
    agree = float(np.mean([a == b for a, b in zip(replayed, host, strict=True)]))
    again = host
    if not bench.tiny:
        eager = GraphCache(None, 0, lambda: 0, "eager")
        again, _, _ = _answers(bench, transformer, planner(), sampling, eager)
    report, tokens = cache.report, sum(len(answer) for answer in replayed)
    bench.note(
        "engine", method=name, tokens=tokens, seconds=seconds, same=replayed == again,
        resident=report.resident, host_steps=report.host, replays=report.replays,
        eager=report.reasons, not_resident=why, host_loop_s=host_s, host_loop_agrees=agree,
        ok=replayed == again and report.resident > 0 and (bench.tiny or report.replays > 0),
    )  # fmt: skip


def _answers(
    bench: Bench,
    transformer: Transformer,
    planner: Planner,
    sampling: Sampling,
    graphs: GraphCache,
    *,
    resident: bool = True,
) -> tuple[list[list[int]], float, str]:
    """Tokens of every request, seconds, and the self-test's complaints."""
    lengths, budget, context = ((5, 19), 5, 48) if bench.tiny else ((5, 60, 33, 200), 60, 512)
    model = _Bare(transformer.config, transformer)
    core, why = _engine(bench, model, planner, graphs, len(lengths), context, resident)
    rng = np.random.default_rng(0)
    for i, length in enumerate(lengths):
        prompt = rng.integers(4, model.config.vocab, length)
        core.submit(Request(str(i), prompt, max_tokens=budget, sampling=sampling))
    began = time.perf_counter()
    events = core.run()
    bench.synchronize()
    seconds = time.perf_counter() - began
    done = {e.key: e.finished.tokens.tolist() for e in events if e.finished is not None}
    core.pages.check_integrity()
    return [done[str(i)] for i in range(len(lengths))], seconds, why


def _engine(
    bench: Bench,
    model: _Bare,
    planner: Planner,
    graphs: GraphCache,
    slots: int,
    context: int,
    resident: bool,
) -> tuple[EngineCore, str]:
    transformer, config = model.transformer, model.config
    pool = KVPool(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        tokens=2 * slots * (context + 512),
        page_size=16,
        device=bench.device,
        dtype=transformer.dtype,
    )
    geometry = geometry_of(transformer, pool.page_size)
    rank = 0 if transformer.adapter is None else len(transformer.adapter.down[0])

    def make_ops(tokens: int, requests: int) -> RoundOps:
        return bench.ops(geometry, tokens, requests, rank)

    # Nothing here needs the torch runner: no hidden states, bias or log-probabilities.
    runner = FusedRunner(model, pool, cast(Any, None), make_ops, graphs)
    core = EngineCore(
        executor=runner,
        pages=pool,
        planners=[planner],
        settings=EngineSettings(max_requests=slots, context=context),
        context=context,
        mask_id=config.mask_id,
        eos_ids=frozenset(config.eos_ids),
        vocab=config.vocab,
    )
    if not resident:
        return core, "switched off"
    rounds = ResidentRounds(
        transformer,
        make_ops,
        Pools(pool.k, pool.v),
        runner.head,
        graphs,
        slots=slots,
        pages=pool.pages,
        page=pool.page_size,
        branches=BRANCHES,
    )
    faults = self_test(rounds)
    core.resident = None if faults else ResidentLoop(core, rounds, graphs.report)
    return core, "; ".join(faults)
