"""Whole rounds on the device in captured graphs, on contents that change from step to step."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from recguide_core.kernels.check.acceptance import ForcedOps, Script
from recguide_core.kernels.check.bench import Bench
from recguide_core.kernels.check.models import random_pools
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.device_forward import DeviceForward, geometry_of
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import PageTable, RoundOps
from recguide_core.kernels.planned_rounds import Decide, PlannedRounds
from recguide_core.kernels.prefill import prefill
from recguide_core.kernels.round_state import RoundState
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.kernels.step_buffers import StepBuffers
from recguide_core.model.transformer import Transformer
from recguide_core.records import MAX_BLOCK, Sampling

PAGE = 16
WARM = Sampling(temperature=0.8, seed=7)
OVERLAP = RoundRule(corrections=2, continuation=True)
EVERYWHERE = RoundRule(delta=2.0, corrections=2, continuation=True)


def rank_of(transformer: Transformer) -> int:
    return 0 if transformer.adapter is None else len(transformer.adapter.down[0])


def rounds(bench: Bench, transformer: Transformer) -> None:
    """Captured rounds emit the same tokens as eager ones, for methods with changing shapes."""
    methods = {"ar": RoundSettings(RoundRule(), 1), "linear": RoundSettings(RoundRule(), 8)}
    methods["overlap"] = RoundSettings(EVERYWHERE, 8)
    methods["overlap, sampling"] = RoundSettings(EVERYWHERE, 8, sampled=True)
    for name, settings in methods.items():
        if bench.tiny:
            settings = replace(settings, target=min(settings.target, 3))
        eager = _decode(bench, transformer, settings, GraphCache(None, 0, lambda: 0, "eager"))
        cache = bench.graphs()
        replayed = _decode(bench, transformer, settings, cache)
        report = cache.report
        bench.note(
            "rounds", method=name, tokens=len(eager), same=eager == replayed,
            graphs=len(report.captured), replays=report.replays, eager=report.eager,
            reasons=report.reasons, ok=eager == replayed and (bench.tiny or report.replays > 0),
        )  # fmt: skip


def _decode(
    bench: Bench, transformer: Transformer, settings: RoundSettings, graphs: GraphCache
) -> list[int]:
    context, budget = (48, 4) if bench.tiny else (256, 40)
    rng = np.random.default_rng(0)
    lengths = (5, 19) if bench.tiny else (5, 60, 33)
    prompts = [rng.integers(4, transformer.config.vocab, n).tolist() for n in lengths]
    per = context // PAGE
    order = rng.permutation(per * len(prompts)).reshape(len(prompts), per)
    pools = random_pools(transformer.config, order.size * PAGE, bench.device, transformer.dtype)
    geometry = geometry_of(transformer, PAGE)
    total, n = sum(lengths), len(prompts)
    buffers = StepBuffers(total, n, order.size, PAGE, bench.device)
    rank = rank_of(transformer)
    out = []
    with torch.inference_mode():
        forward = DeviceForward(transformer, bench.ops(geometry, total, n, rank), total)
        head = OutputHead(transformer.weights.head, total)
        state = prefill(forward, head, buffers, pools, prompts, order.tolist(),
                        max_tokens=budget, context=context,
                        sampling=[WARM] * n if settings.sampled else ())  # fmt: skip

        def make(tokens: int, requests: int) -> RoundOps:
            return bench.ops(geometry, tokens, requests, rank)

        loop = DeviceRounds(transformer, make, pools, buffers.table, state, settings, graphs)
        while not loop.done:
            emitted = loop.step()
            for tokens, count in zip(emitted.tokens.tolist(), emitted.count.tolist(), strict=True):
                out += tokens[:count]
    return out


def replay(
    bench: Bench, transformer: Transformer, name: str, method: RoundSettings | Decide,
    requests: int, context: int, script: Script,
) -> None:  # fmt: skip
    """Real forwards of real shapes with accepted lengths and hits from a script.

    Args:
        method: fixed settings, whose rounds the device decides, or a planner on the host.
    """
    warm, steps = (2, 3) if bench.tiny else (12, 60)
    B = method.target if isinstance(method, RoundSettings) else None
    target = B or MAX_BLOCK
    reach = context + (warm + steps + 2) * target
    per = -(-reach // PAGE)
    config = transformer.config
    geometry = geometry_of(transformer, PAGE)
    rng = np.random.default_rng(0)
    pages = torch.from_numpy(rng.permutation(per * requests)).int().to(bench.device)
    ptr = torch.arange(requests + 1, dtype=torch.int32, device=bench.device) * per
    pools = random_pools(config, per * requests * PAGE, bench.device, transformer.dtype)
    state = _started(requests, context, reach, bench.device)
    rank = rank_of(transformer)

    def make(tokens: int, n: int) -> RoundOps:
        return ForcedOps(bench.ops(geometry, tokens, n, rank), script, config.vocab)

    with torch.inference_mode():
        table = PageTable(pages, ptr, PAGE)
        graphs = bench.graphs()
        loop: DeviceRounds | PlannedRounds
        if isinstance(method, RoundSettings):
            loop = DeviceRounds(transformer, make, pools, table, state, method, graphs)
        else:
            loop = PlannedRounds(transformer, make, pools, table, state, method, graphs)
        state = loop.state
        # The first steps capture; their state is part of the run, their time is not.
        for _ in range(warm):
            loop.step()
        bench.synchronize()
        emitted, widths, host = 0, 0, 0.0
        before, began = state.rounds.sum().item(), time.perf_counter()
        reused = state.reused.sum().item()
        loop.launch()
        for left in reversed(range(steps)):
            record = loop.collect()
            if left:
                loop.launch()
            # Handing out overlaps with the step just launched.
            looked = time.perf_counter()
            emitted += int(record.count.sum())
            widths += int(record.width.sum())
            host += time.perf_counter() - looked
        bench.synchronize()
        wall = time.perf_counter() - began
    done = max(1, state.rounds.sum().item() - before)
    hits = (state.reused.sum().item() - reused) / done
    report = graphs.report
    bench.note(
        "replay", method=name, B=B, mean_block=widths / done, C=requests, context=context,
        steps=steps,
        rounds=done, tokens=emitted, tps=emitted / wall, tps_per_request=emitted / wall / requests,
        accepted_length=emitted / done, h=hits, step_ms=wall / steps * 1e3,
        hand_out_share=host / wall, graphs=len(report.captured), eager=report.reasons,
    )  # fmt: skip


def _started(requests: int, context: int, reach: int, device: torch.device) -> RoundState:
    """Requests in the middle of their output."""
    state = RoundState.sized(requests, device)
    state.live.fill_(1)
    state.committed.fill_(context)
    state.seed.copy_(torch.arange(4, 4 + requests))
    state.remaining.fill_(reach)
    state.room.fill_(reach - context)
    return state
