"""Prefilled requests of the bundled model for tests of device-resident rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from cases import FakeCapture

from recguide_core.kernels.device_forward import DeviceForward, Pools, geometry_of
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import PageTable, TorchRoundOps
from recguide_core.kernels.prefill import prefill
from recguide_core.kernels.round_state import RoundState
from recguide_core.kernels.step_buffers import StepBuffers
from recguide_core.records import Sampling

PAGE, CONTEXT, BUDGET = 16, 160, 24
PROMPTS = ("12 + 30 = ", "List three fruits.", "What is the capital of France?")


def prompts_of(model) -> list[list[int]]:
    texts = [model.render([{"role": "user", "content": text}]) for text in PROMPTS]
    return [list(model.tokenizer.encode(text)) for text in texts]


def started(
    model,
    build: Callable,
    change: Callable[[RoundState], None] = lambda state: None,
    sampling: Sequence[Sampling] = (),
):
    """`build(transformer, make_ops, pools, table, state, graphs)` behind the prompts, and the
    first token of each request; `change` edits the state before.
    """
    transformer, config = model.transformer, model.config
    prompts = prompts_of(model)
    per = CONTEXT // PAGE
    order = np.random.default_rng(0).permutation(per * len(prompts)).reshape(len(prompts), per)
    slots = per * len(prompts) * PAGE
    pools = Pools(*(
        [torch.full((slots, config.kv_heads, config.head_dim), float("nan"))
         for _ in range(config.layers)] for _ in range(2)
    ))  # fmt: skip
    geometry = geometry_of(transformer, PAGE)
    total = sum(len(p) for p in prompts)
    buffers = StepBuffers(total, len(prompts), order.size, PAGE, torch.device("cpu"))
    head = OutputHead(transformer.weights.head, 4)
    forward = DeviceForward(transformer, TorchRoundOps(geometry), total)
    state = prefill(forward, head, buffers, pools, prompts, order.tolist(),
                    max_tokens=BUDGET, context=CONTEXT, sampling=sampling)  # fmt: skip
    table = PageTable(buffers.table.pages, buffers.table.page_ptr, PAGE)
    # A captured round is recorded without running: state must move once a step, not twice.
    graphs = GraphCache(FakeCapture(), 1 << 30, lambda: 0)
    change(state)
    seeds = [[int(s)] for s in state.seed]
    make = lambda tokens, requests: TorchRoundOps(geometry)  # noqa: E731
    return build(transformer, make, pools, table, state, graphs), seeds


def drained(
    model,
    build: Callable,
    change: Callable[[RoundState], None] = lambda state: None,
    look: Callable[[Any, list[list[int]]], None] = lambda rounds, out: None,
    sampling: Sequence[Sampling] = (),
):
    """Emitted tokens of every request, the loop, and the number of steps.

    As a server would run it: the next step is on its way when tokens are handed out, and only then
    can the host see (`look`) that a request has ended.
    """
    with torch.inference_mode():
        rounds, out = started(model, build, change, sampling)
        steps = 0
        if not rounds.done:
            rounds.launch()
        while not rounds.done:
            emitted = rounds.collect()
            steps += 1
            if not rounds.done:
                rounds.launch()
            for tokens, count, mine in zip(emitted.tokens, emitted.count, out, strict=True):
                mine.extend(tokens[: int(count)].tolist())
            look(rounds, out)
            assert steps < 10 * BUDGET
    return out, rounds, steps
