"""Faults, refusals and preemption: only the request concerned ends, nothing leaks."""

import numpy as np
import pytest
import torch
from harness import (
    assert_lossless,
    engine_of,
    finish_all,
    generate,
    planner_of,
    request,
)

from recguide_core.errors import UsageError
from recguide_core.records import Finish, Sampling

METHODS = [
    ("ar", None),
    ("linear", 8),
    ("overlap", 8),
    ("tidar", 4),
    ("adaptive", None),
    ("recguide", None),
]


# -- faults ---------------------------------------------------------------------------------


@pytest.fixture
def poisoned(tmp_path):
    """A random model whose embedding of token 200 is not a number."""
    from checkpoints import published_config, published_tensors, write_checkpoint

    from recguide_core.model.registry import load_model

    config = published_config("8b")
    tensors = published_tensors(config)
    tensors["encoder.embed_tokens.weight"][200] = float("nan")
    # Nobody chooses it by itself.
    tensors["diffusion_head.weight"][200] = 0.0
    return load_model(str(write_checkpoint(tmp_path, config, tensors=tensors)), max_positions=1024)


@pytest.mark.parametrize("method", ["ar", "linear", "overlap", "tidar"])
@pytest.mark.parametrize("chunk", [0, 4])
def test_logits_that_are_not_finite_end_their_request_only(poisoned, random_prompts, method, chunk):
    prompts = [[t for t in p if t != 200] for p in random_prompts]
    ar = generate(poisoned, planner_of("ar"), prompts, 20, max_requests=1)
    bad = [*prompts[4][:9], 200, *prompts[4][9:]]
    engine = engine_of(
        poisoned,
        planner_of(method, 4 if method != "ar" else None),
        max_requests=4,
        prefill_chunk=chunk,
        kv_tokens=400,
    )
    for i, prompt in enumerate(prompts):
        engine.submit(request(i, prompt, 20))
        if i in (1, 4):
            engine.submit(request(f"bad{i}", bad, 20))
    done = finish_all(engine)
    engine.assert_all_returned()
    for key in ("bad1", "bad4"):
        assert done[key].finish == Finish.ERROR
        assert "not finite" in done[key].error
        assert len(done[key].tokens) == 0
    assert_lossless(poisoned, prompts, ar, [done[str(i)] for i in range(len(prompts))])
    assert all(t.isfinite().all() for t in (*engine.pool.k, *engine.pool.v))


@pytest.mark.parametrize("method", ["linear", "overlap", "tidar"])
@pytest.mark.parametrize("failing", range(9))
def test_an_executor_that_fails_leaves_a_step_that_can_be_run_again(tiny, pinned, method, failing):
    """Out of memory, say: the exception comes out, ownership holds, the next step goes on."""
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of(method, 8), kv_tokens=2048, prefill_chunk=32)
    for i in range(2):
        engine.submit(request(i, prompts[i], 20))
    real, calls = engine.executor, []

    class Failing:
        def execute(self, step, needs):
            calls.append(0)
            readings = real.execute(step, needs)
            if len(calls) == failing + 1:
                raise MemoryError("no room")
            return readings

    engine.executor = Failing()
    done = {}
    attempts = 0
    while not engine.idle:
        attempts += 1
        assert attempts < 200
        try:
            done |= {e.key: e.finished for e in engine.step() if e.finished}
        except MemoryError:
            engine.check()
    engine.assert_all_returned()
    for i in range(2):
        assert done[str(i)].tokens.tolist() == ar[i].tokens[:20].tolist()


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompt": []}, "empty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"prompt": list(range(10, 74))}, "context"),
        ({"prompt": [5, -1]}, "token"),
        ({"prompt": [5, 2048]}, "token"),
        ({"planner": 3}, "planner"),
        ({"planner": -1}, "planner"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 3000}, "logprobs"),
        ({"sampling": Sampling(temperature=-0.1)}, "temperature"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ({"sampling": Sampling(temperature=1.0, top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(temperature=1.0, top_p=1.1)}, "top_p"),
        ({"sampling": Sampling(temperature=1.0, top_k=-1)}, "top_k"),
        ({"sampling": Sampling(temperature=1.0, min_p=1.5)}, "min_p"),
        ({"sampling": Sampling(temperature=1.0, seed=2**64)}, "seed"),
        ({"sampling": Sampling(logit_bias=((4000, 1.0),))}, "logit_bias"),
        ({"sampling": Sampling(logit_bias=((4, float("nan")),))}, "logit_bias"),
        ({"fixed_block": 33}, "lock size"),
        ({"fixed_block": -1}, "lock size"),
    ],
    ids=str,
)
def test_a_request_that_cannot_run_is_refused_at_the_door(tiny, changes, named):
    engine = engine_of(tiny, planner_of("linear", 8), context=64)
    fixed = changes.get("fixed_block", 0)
    good = {"prompt": [5, 6, 7], "max_tokens": 4}
    with pytest.raises(UsageError, match=named):
        engine.submit(
            request("r", **(good | {k: v for k, v in changes.items() if k != "fixed_block"})),
            fixed,
        )
    engine.assert_all_returned()
    engine.submit(request("r", **good))
    assert len(finish_all(engine)["r"].tokens) >= 1


def test_a_key_in_use_is_refused_and_free_again_afterwards(tiny):
    engine = engine_of(tiny, planner_of("ar"))
    engine.submit(request("r", [5], 2))
    with pytest.raises(UsageError, match="'r'"):
        engine.submit(request("r", [5], 2))
    finish_all(engine)
    engine.submit(request("r", [5], 2))
    finish_all(engine)


def test_a_request_larger_than_the_pool_is_refused(tiny):
    engine = engine_of(tiny, planner_of("ar"), kv_tokens=64, context=256)
    with pytest.raises(UsageError, match="KV pool"):
        engine.submit(request("r", [5] * 40, 60))
    engine.submit(request("r", [5] * 40, 24))
    finish_all(engine)


def test_a_submitted_request_is_not_changed(tiny):
    mine = request("r", [5] * 10, 500)
    engine = engine_of(tiny, planner_of("ar"), context=32)
    engine.submit(mine)
    assert len(finish_all(engine)["r"].tokens) <= 22
    assert mine.max_tokens == 500


# -- preemption -----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "block"), METHODS)
@pytest.mark.parametrize("page_size", [16])
def test_kv_for_one_and_a_half_requests_with_eight(tiny, pinned, method, block, page_size):
    """No deadlock, nothing lost; logprobs and sampling state survive being recomputed."""
    prompts, ar = pinned
    longest = max(len(p) for p in prompts) + 24
    engine = engine_of(
        tiny,
        planner_of(method, block),
        max_requests=8,
        page_size=page_size,
        kv_tokens=longest * 3 // 2 // 16 * 16 + 16,
        prefill_chunk=16,
    )
    for i, prompt in enumerate(prompts):
        engine.submit(request(i, prompt, 24, logprobs=0))
    done, steps = {}, 0
    while not engine.idle:
        steps += 1
        assert steps < 4000, "no progress"
        done |= {e.key: e.finished for e in engine.step() if e.finished}
    engine.assert_all_returned()
    got = [done[str(i)] for i in range(len(prompts))]
    for mine, reference in zip(got, ar, strict=True):
        assert mine.tokens.tolist() == reference.tokens[:24].tolist()
        assert len(mine.logprobs) == len(mine.tokens)
        assert np.isfinite(mine.logprobs).all()


def test_sampling_survives_being_preempted(random_tiny, random_prompts):
    hot = [Sampling(temperature=1.2, seed=i, top_p=0.9) for i in range(8)]
    ar = generate(random_tiny, planner_of("ar"), random_prompts, 16, sampling=hot, max_requests=1)
    for method, block in (("linear", 8), ("overlap", 6)):
        got = generate(
            random_tiny,
            planner_of(method, block),
            random_prompts,
            16,
            sampling=hot,
            max_requests=8,
            page_size=1,
            kv_tokens=90,
        )
        assert [d.tokens.tolist() for d in got] == [d.tokens.tolist() for d in ar]


def test_finite_after_everything(tiny):
    """Sanity of the fixtures: the bundled weights hold no NaN."""
    assert all(torch.isfinite(layer.qkv).all() for layer in tiny.transformer.weights.layers)
