"""The FlashInfer back end over a stand-in of its wrapper: masks, pages, and the engine's tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flashinfer_stand_in import flashinfer  # noqa: F401

from recguide_core.engine.engine import Engine
from recguide_core.engine.flashinfer_runner import FlashInferRunner
from recguide_core.engine.planners import ArPlanner, LinearPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.engine.repetition import Repetition
from recguide_core.engine.rows import pack
from recguide_core.engine.settings import EngineSettings
from recguide_core.kernels.attention_torch import PackedLayout, TorchAttention
from recguide_core.kernels.flashinfer_ranges import FlashInferAttention, ranges_plan
from recguide_core.kvcache import KVPool
from recguide_core.model.registry import load_model
from recguide_core.policy.branches import BranchRule
from recguide_core.records import Request, Row, Rows, Sampling

TEXTS = ("12 + 30 = ", "List three fruits.", "Say hello.")


def drawn(seed: int, page: int) -> tuple[PackedLayout, KVPool, KVPool]:
    """Uniform rows of every kind over scattered pages, and two pools with the same prefixes."""
    rng = np.random.default_rng(seed)
    pools = [
        KVPool(layers=1, kv_heads=2, head_dim=16, tokens=1024, page_size=page,
               device=torch.device("cpu"), dtype=torch.float32)
        for _ in range(2)
    ]  # fmt: skip
    n = int(rng.integers(1, 6))
    prefix = rng.integers(0, 60, n)
    rows = []
    for r in range(n):
        # One token may be causal or not; a bidirectional row of one is a draft of one.
        length, causal = int(rng.integers(1, 13)), bool(rng.random() < 0.5)
        tokens = np.zeros(length)
        start = int(prefix[r])
        rows.append(Row(r, tokens, start, bidirectional=not causal, commit=causal))
    # Pages are reserved in turns, so that no request's pages are adjacent.
    for step in (7, 30, 80):
        for r in rng.permutation(n).tolist():
            for pool in pools:
                pool.reserve(r, min(step, int(prefix[r]) + 13))
    for r in range(n):
        for pool in pools:
            pool.reserve(r, int(prefix[r]) + 13)
    known = torch.from_numpy(rng.standard_normal((2, 1024, 2, 16))).float()
    for pool in pools:
        for r in range(n):
            at = torch.from_numpy(pool.slots(r, 0, int(prefix[r])))
            pool.k[0][at], pool.v[0][at] = known[0][at], known[1][at]
    step = pack(Rows.of(rows), prefix)
    return PackedLayout(step.slots, step.offset, step.prefix, step.vis), *pools


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("seed", range(8))
def test_attention_equals_the_torch_twin(flashinfer, seed: int, page: int) -> None:  # noqa: F811
    layout, pool, other = drawn(seed, page)
    g = torch.Generator().manual_seed(seed)
    total = int(layout.offset[-1])
    q = torch.randn(total, 8, 16, generator=g)
    k, v = torch.randn(2, total, 2, 16, generator=g)
    want = TorchAttention(other, layout, 4).attend(0, q, k, v)
    ours = FlashInferAttention(pool, 4)
    ours.prepare(ranges_plan(layout, pool))
    assert flashinfer.planned == 1
    got = ours.attend(0, q, k, v)
    assert torch.allclose(got, want, atol=1e-5)
    slots = torch.from_numpy(ranges_plan(layout, pool).slots)
    assert torch.equal(pool.k[0][slots], k) and torch.equal(pool.v[0][slots], v)


def finish(engine: Engine, model) -> dict[str, list[int]]:
    wishes = ({}, {"sampling": Sampling(temperature=0.8, top_p=0.9, seed=4)}, {"logprobs": 2})
    for i, text in enumerate(TEXTS):
        prompt = model.tokenizer.encode(model.render([{"role": "user", "content": text}]))
        engine.submit(Request(str(i), np.array(prompt), max_tokens=14, **wishes[i]))
    return {e.key: e.finished.tokens.tolist() for e in engine.run() if e.finished is not None}


@pytest.mark.parametrize(
    ("planner", "refuses"),
    [
        (ArPlanner, False),
        (lambda: LinearPlanner(8), False),
        (lambda: OverlapPlanner(8, BranchRule(delta=1.1)), True),
    ],
    ids=["ar", "linear", "overlap"],
)
def test_same_tokens_as_torch(flashinfer, planner, refuses) -> None:  # noqa: F811
    """Prompt chunks, drafts, verifies and sampling; steps with branches go through torch."""
    model = load_model("nld-tiny")
    settings = EngineSettings(max_requests=3, prefill_chunk=7, page_size=16, context=256)
    want = finish(Engine(model, planners=[planner()], settings=settings), model)
    engine = Engine(model, planners=[planner()], settings=settings)
    runner = engine.executor = FlashInferRunner(engine.model, engine.pool)
    assert finish(engine, model) == want
    assert flashinfer.planned >= 3
    reasons = {"a row sees a parent row", "a request has several rows"}
    assert bool(runner.refused) == refuses and set(runner.refused) <= reasons
    engine.pool.check_integrity()


def test_forwards_that_run_twice_share_a_plan(flashinfer) -> None:  # noqa: F811
    """The host's share is found by running forwards again on what was prepared."""
    model = load_model("nld-tiny")
    settings = EngineSettings(max_requests=3, page_size=16, context=256)
    want = finish(Engine(model, planners=[LinearPlanner(8)], settings=settings), model)
    engine = Engine(model, planners=[LinearPlanner(8)], settings=settings)
    runner = engine.runner = engine.executor = FlashInferRunner(engine.model, engine.pool)
    runner.repetition = Repetition()
    assert finish(engine, model) == want
    assert runner.repetition.count == engine.counters.steps
    assert flashinfer.planned == engine.counters.steps
