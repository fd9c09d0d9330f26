"""The bitwise back end: equal decisions bit for bit, whatever method, batch or chunk made them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import demo_prompts, planner_of

from recguide_core.bench.bits import digests
from recguide_core.engine import one_token_runner
from recguide_core.engine.engine import Engine
from recguide_core.engine.settings import EngineSettings
from recguide_core.kvcache import KVPool
from recguide_core.records import Finish, Finished, Request

TOKENS = 14


def outputs(model, method, prompts, **settings):
    limits = EngineSettings(attention_backend=one_token_runner.NAME, **settings)
    engine = Engine(model, planners=[planner_of(method, 8)], settings=limits)
    for i, prompt in enumerate(prompts):
        engine.submit(Request(f"r{i}", np.array(prompt), TOKENS, ignore_eos=True, logprobs=8))
    done = {}
    while len(done) < len(prompts):
        done |= {event.key: event.finished for event in engine.step() if event.finished}
    return [done[f"r{i}"] for i in range(len(prompts))]


@pytest.fixture(scope="module")
def prompts(tiny):
    return [prompt[:40] for prompt in demo_prompts(tiny, 4)]


@pytest.fixture(scope="module")
def alone(tiny, prompts):
    """AR, one request at a time."""
    return outputs(tiny, "ar", prompts, max_requests=1)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ar", {"max_requests": 4, "prefill_chunk": 7}),
        ("linear", {"max_requests": 3}),
        ("overlap", {"max_requests": 4, "prefill_chunk": 16}),
        ("tidar", {"max_requests": 2}),
    ],
)
def test_every_method_and_batch_decides_bit_for_bit_as_ar_alone(
    tiny, prompts, alone, method, settings
):
    for mine, plain in zip(outputs(tiny, method, prompts, **settings), alone, strict=True):
        assert mine.tokens.tolist() == plain.tokens.tolist()
        assert mine.logprobs.tobytes() == plain.logprobs.tobytes()
        assert mine.top_logprobs == plain.top_logprobs
        assert digests(mine) == digests(plain)


def test_a_random_model_whose_drafts_fail(random_tiny, random_prompts):
    alone = outputs(random_tiny, "ar", random_prompts, max_requests=1)
    together = outputs(random_tiny, "overlap", random_prompts, max_requests=5, prefill_chunk=9)
    assert [digests(f) for f in together] == [digests(f) for f in alone]


def test_committed_keys_are_those_of_ar(tiny, prompts):
    """What later tokens read is the same too, so equality does not hang on what was sampled."""
    held = []
    for method in ("ar", "linear"):
        limits = EngineSettings(attention_backend=one_token_runner.NAME, max_requests=1)
        engine = Engine(tiny, planners=[planner_of(method, 8)], settings=limits)
        engine.submit(Request("r", np.array(prompts[0]), TOKENS, ignore_eos=True))
        committed = 0
        while committed < len(prompts[0]) + 6:
            engine.step()
            committed = engine.pages.committed(next(iter(engine.scheduler.running)))
        pool: KVPool = engine.pool
        slots = pool.slots(next(iter(engine.scheduler.running)), 0, len(prompts[0]) + 6)
        held.append([pool.k[-1][slots].clone(), pool.v[-1][slots].clone()])
    assert all(torch.equal(a, b) for a, b in zip(*held, strict=True))


def test_a_digest_sees_the_last_bit():
    made = Finished(
        "r", np.array([5, 6]), np.zeros(2), Finish.LENGTH, 1, 2, 0, 2,
        np.array([-0.5, -1.5], np.float32), [[(5, -0.5), (7, -2.0)], [(6, -1.5), (1, -1.75)]],
    )  # fmt: skip
    first = digests(made)
    assert len(set(first)) == 2
    nudged = replace(made, logprobs=np.nextafter(made.logprobs, np.float32(0)))
    assert all(a != b for a, b in zip(first, digests(nudged), strict=True))
    other = float(np.nextafter(np.float32(-1.75), np.float32(0)))
    runner_up = replace(made, top_logprobs=[made.top_logprobs[0], [(6, -1.5), (1, other)]])
    assert [a == b for a, b in zip(first, digests(runner_up), strict=True)] == [True, False]
    assert digests(replace(made, logprobs=None)) == []
