"""The kernel executor under the real engine, its operations done by the torch twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import FakeCapture

from recguide_core.engine.backend import execution_for, target_of
from recguide_core.engine.engine import Engine
from recguide_core.engine.fused_runner import FusedRunner
from recguide_core.engine.planners import ArPlanner, LinearPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner, TidarPlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import CapacityError
from recguide_core.kernels.device_forward import geometry_of
from recguide_core.kernels.graphs import FIRST, GraphCache
from recguide_core.kernels.ops import TorchRoundOps
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.registry import load_model
from recguide_core.policy.branches import BranchRule
from recguide_core.records import Finished, Request, Sampling

TEXTS = ("12 + 30 = ", "List three fruits.", "Say hello.")


@pytest.fixture(scope="module")
def model():
    """The bundled model with a random draft adapter, so that the adapter path is exercised."""
    loaded = load_model("nld-tiny")
    c = loaded.config
    g = torch.Generator().manual_seed(1)
    if loaded.transformer.adapter is None:
        loaded.transformer.adapter = DraftAdapter(
            [torch.randn(16, c.heads * c.head_dim, generator=g) / 16 for _ in range(c.layers)],
            [torch.randn(c.hidden, 16, generator=g) / 16 for _ in range(c.layers)],
        )
    return loaded


def fused(engine: Engine, capture=None) -> FusedRunner:
    transformer = engine.model.transformer
    geometry = geometry_of(transformer, engine.pool.page_size)
    graphs = GraphCache(capture, 1 << 30, lambda: 0, "no device")
    make = lambda tokens, requests: TorchRoundOps(geometry)  # noqa: E731
    return FusedRunner(engine.model, engine.pool, engine.runner, make, graphs)


def engine_for(model, planner) -> Engine:
    settings = EngineSettings(max_requests=3, prefill_chunk=7, page_size=16, context=256)
    return Engine(model, planners=[planner], settings=settings)


def finish(engine: Engine, model, **options) -> dict[str, list[int]]:
    for i, text in enumerate(TEXTS):
        prompt = model.tokenizer.encode(model.render([{"role": "user", "content": text}]))
        engine.submit(Request(str(i), np.array(prompt), max_tokens=14, **options))
    return {e.key: e.finished.tokens.tolist() for e in engine.run() if e.finished is not None}


@pytest.mark.parametrize(
    "planner",
    [
        ArPlanner,
        lambda: LinearPlanner(8),
        # A delta above 1 finds every position risky: branches in every round.
        lambda: OverlapPlanner(8, BranchRule(delta=1.1)),
        lambda: TidarPlanner(4),
    ],
    ids=["ar", "linear", "overlap", "tidar"],
)
def test_same_tokens_as_the_torch_runner(model, planner) -> None:
    want = finish(engine_for(model, planner()), model)
    engine = engine_for(model, planner())
    runner = engine.executor = fused(engine, capture=FakeCapture())
    assert finish(engine, model) == want
    report = runner.graphs.report
    # Short answers bring few steps; what counts is that only these reasons keep one eager.
    assert report.replays > 0
    assert set(report.reasons) <= {"prompt chunk", "first of its shape"}
    assert set(report.reasons) == {"prompt chunk", FIRST}
    engine.pool.check_integrity()


SAMPLED = (
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=1.3, top_p=0.7, seed=2**40 + 5),
    Sampling(temperature=0.9, top_k=5, min_p=0.05, seed=9),
    Sampling(logit_bias=((40, 8.0), (41, -8.0))),
)


def served(engine: Engine, model, wishes: list[dict]) -> dict[str, Finished]:
    """Requests with different wishes side by side."""
    for i, options in enumerate(wishes):
        text = TEXTS[i % len(TEXTS)]
        prompt = model.tokenizer.encode(model.render([{"role": "user", "content": text}]))
        engine.submit(Request(str(i), np.array(prompt), max_tokens=14, **options))
    return {e.key: e.finished for e in engine.run() if e.finished is not None}


@pytest.mark.parametrize(
    "planner",
    [ArPlanner, lambda: LinearPlanner(8), lambda: OverlapPlanner(8, BranchRule(delta=1.1))],
    ids=["ar", "linear", "overlap"],
)
def test_wishes_of_some_keep_all_in_the_graphs(model, planner) -> None:
    """Sampling, filters, bias and logprobs beside greedy requests: the torch runner's answers."""
    wishes = [{}, *({"sampling": s} for s in SAMPLED), {"logprobs": 3}, {}]
    want = served(engine_for(model, planner()), model, wishes)
    engine = engine_for(model, planner())
    runner = engine.executor = fused(engine, capture=FakeCapture())
    got = served(engine, model, wishes)
    for key, done in want.items():
        assert got[key].tokens.tolist() == done.tokens.tolist(), key
    scored, plain = got["5"], want["5"]
    assert scored.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    ids = [[token for token, _ in pairs] for pairs in scored.top_logprobs]
    assert ids == [[token for token, _ in pairs] for pairs in plain.top_logprobs]
    report = runner.graphs.report
    assert set(report.reasons) <= {"prompt chunk", FIRST}
    assert report.replays > 0 and report.reread > 0


def test_seeded_output_is_that_of_ar_in_graphs(model) -> None:
    """The noise belongs to the position: every method samples AR's tokens."""
    wishes = [{"sampling": s} for s in SAMPLED[:3]]
    want = served(engine_for(model, ArPlanner()), model, wishes)
    engine = engine_for(model, OverlapPlanner(8, BranchRule(delta=1.1)))
    engine.executor = fused(engine, capture=FakeCapture())
    got = served(engine, model, wishes)
    assert {k: v.tokens.tolist() for k, v in got.items()} == {
        k: v.tokens.tolist() for k, v in want.items()
    }


def test_wishes_are_read_in_chunks(model) -> None:
    """A small buffer of logits changes no token."""
    wishes = [{"sampling": s} for s in SAMPLED]
    want = served(engine_for(model, LinearPlanner(16)), model, wishes)
    engine = engine_for(model, LinearPlanner(16))
    runner = engine.executor = fused(engine, capture=FakeCapture())
    runner._head.rows = 8
    got = served(engine, model, wishes)
    assert {k: v.tokens.tolist() for k, v in got.items()} == {
        k: v.tokens.tolist() for k, v in want.items()
    }


def test_hidden_states_keep_a_step_out_of_the_graphs(model) -> None:
    engine = engine_for(model, ArPlanner())
    runner = engine.executor = fused(engine)
    engine.ledger.needs.hidden = True
    finish(engine, model)
    assert set(runner.graphs.report.reasons) == {"hidden states"}


def test_self_test_passes_and_fails_for_cause(model) -> None:
    engine = engine_for(model, ArPlanner())
    assert fused(engine, capture=FakeCapture()).self_test() == []

    frozen = fused(engine, capture=FakeCapture(lambda forward: lambda: None))
    assert "a replay ignores its inputs" in frozen.self_test()

    deaf = fused(engine, capture=FakeCapture())
    deaf._adapter = False
    assert deaf.self_test() == ["the draft adapter does not change a replayed draft"]


def test_self_test_sees_a_wrong_replay(model) -> None:
    """A captured forward that differs from the eager one by a little is a fault."""
    engine = engine_for(model, ArPlanner())
    runner = fused(engine)

    def capture(forward):
        def replay() -> None:
            forward()
            bucket = next(iter(runner._buckets.values()))
            bucket.read.stats[0, 3] += 1e-3

        return replay

    runner.graphs._capture = FakeCapture(capture)
    assert "a replayed forward differs from the eager one" in runner.self_test()


def test_choice_of_the_executor(model) -> None:
    engine = engine_for(model, ArPlanner())
    execution = execution_for(model, engine.pool)
    assert execution.choice.name == "torch"
    assert execution.choice.reasons["triton"] == "needs a CUDA device"
    with pytest.raises(CapacityError, match="needs a CUDA device"):
        execution_for(model, engine.pool, "triton")
    target = target_of(model, 16)
    assert (target.head_dim, target.group) == (64, 2)
    assert replace(target, device="cuda", dtype="bfloat16").eos_ids == 1
