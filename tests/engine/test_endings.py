"""Stops, budgets, aborts and faults at every token of a window: nothing lost, nothing leaked."""

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
from recguide_core.records import Finish, Origin, Sampling

METHODS = [
    ("ar", None),
    ("linear", 8),
    ("overlap", 8),
    ("tidar", 4),
    ("adaptive", None),
    ("recguide", None),
]
SPECULATIVE = [("linear", 8), ("overlap", 8), ("tidar", 4)]
"""For what `test_branches` also plays through, at every place of a window, without a model."""


def one(model, method, block, prompt, max_tokens, **options):
    """One request alone, with everything returned; its record."""
    settings = {k: options.pop(k) for k in list(options) if k in ("context", "prefill_chunk")}
    engine = engine_of(model, planner_of(method, block), kv_tokens=768, **settings)
    engine.submit(request("r", prompt, max_tokens, **options))
    done = finish_all(engine)["r"]
    engine.assert_all_returned()
    return done


@pytest.mark.parametrize(("method", "block"), METHODS)
def test_max_tokens_is_exact(tiny, pinned, method, block):
    prompts, ar = pinned
    B = block or 8
    for n in (1, 2, B - 1, B, B + 1, 2 * B + 1):
        done = one(tiny, method, block, prompts[0], n)
        assert done.tokens.tolist() == ar[0].tokens[:n].tolist()
        assert done.finish == Finish.LENGTH
        assert done.round_tokens == n - 1
        assert done.origins[0] == Origin.PREFILL


def text_without_eos(model, pinned):
    """A prompt whose AR output has no EOS in it and distinct tokens to stop at."""
    prompts, ar = pinned
    for prompt, done in zip(prompts, ar, strict=True):
        if model.config.eos_ids[0] not in done.tokens.tolist():
            return prompt, done.tokens.tolist()
    raise AssertionError("no pinned prompt runs to its budget")


@pytest.mark.parametrize(("method", "block"), SPECULATIVE)
def test_a_stop_token_ends_at_its_place_wherever_the_window_lies(tiny, pinned, method, block):
    """Stop ids taken from the text: over all of them every place of a window is hit."""
    prompt, text = text_without_eos(tiny, pinned)
    for token in dict.fromkeys(text[:8]):
        done = one(tiny, method, block, prompt, 32, stop_ids=frozenset({token}))
        cut = text[: text.index(token) + 1]
        assert done.tokens.tolist() == cut
        assert done.finish == Finish.STOP
        assert len(done.origins) == len(cut)
        assert done.round_tokens == len(cut) - 1


@pytest.mark.parametrize(("method", "block"), SPECULATIVE)
def test_a_stop_callback_ends_at_its_token(tiny, pinned, method, block):
    """The callback sees each emitted token once, in order, and nothing behind its stop."""
    prompt, text = text_without_eos(tiny, pinned)
    for count in range(1, 10):
        heard = []

        def stop(token, heard=heard, count=count):
            heard.append(token)
            return len(heard) == count

        done = one(tiny, method, block, prompt, 32, stop=stop)
        assert done.tokens.tolist() == heard == text[:count]
        assert done.finish == Finish.STOP


@pytest.mark.parametrize(("method", "block"), SPECULATIVE)
def test_a_stop_callback_that_raises_ends_its_request_only(tiny, pinned, method, block):
    prompts, ar = pinned
    for count in (1, 2, 5, 9):
        heard = []

        def stop(token, heard=heard, count=count):
            heard.append(token)
            if len(heard) == count:
                raise ValueError("broken rule")
            return False

        engine = engine_of(tiny, planner_of(method, block), kv_tokens=1536)
        engine.submit(request("bad", prompts[0], 32, stop=stop))
        engine.submit(request("good", prompts[1], 24))
        done = finish_all(engine)
        engine.assert_all_returned()
        assert done["bad"].finish == Finish.ERROR
        assert "broken rule" in done["bad"].error
        assert done["bad"].tokens.tolist() == ar[0].tokens[: count - 1].tolist()
        assert done["good"].tokens.tolist() == ar[1].tokens[:24].tolist()


@pytest.mark.parametrize(("method", "block"), SPECULATIVE)
def test_eos_is_included_and_ignored_on_request(tiny, pinned, method, block):
    """EOS of the engine moved to tokens of the text, so that it falls on every place."""
    prompt, text = text_without_eos(tiny, pinned)
    for token in dict.fromkeys(text[:4]):
        engine = engine_of(tiny, planner_of(method, block), kv_tokens=1536)
        engine.eos_ids = engine.ledger.eos_ids = frozenset({token})
        engine.submit(request("ends", prompt, 32))
        engine.submit(request("goes on", prompt, 32, ignore_eos=True))
        done = finish_all(engine)
        engine.assert_all_returned()
        assert done["ends"].tokens.tolist() == text[: text.index(token) + 1]
        assert done["ends"].finish == Finish.STOP
        assert done["goes on"].tokens.tolist() == text


def test_the_models_own_eos_ends_the_output(tiny):
    from harness import demo_prompts

    eos = tiny.config.eos_ids[0]
    prompts = demo_prompts(tiny, 4)
    ar = generate(tiny, planner_of("ar"), prompts, 100)
    ended = [d for d in ar if d.finish == Finish.STOP]
    assert ended, "no output reached EOS"
    assert all(d.tokens[-1] == eos and eos not in d.tokens[:-1] for d in ended)
    got = generate(tiny, planner_of("linear", 16), prompts, 100)
    assert_lossless(tiny, prompts, ar, got)


@pytest.mark.parametrize(("method", "block"), SPECULATIVE)
@pytest.mark.parametrize("room", [1, 2, 7, 8, 9, 20])
def test_the_context_limit_is_exact(tiny, pinned, method, block, room):
    """Budget beyond the context: the output ends where the context does, for every rest."""
    prompts, ar = pinned
    context = len(prompts[0]) + room
    done = one(tiny, method, block, prompts[0], 500, context=context)
    assert done.tokens.tolist() == ar[0].tokens[:room].tolist()
    assert done.finish == Finish.LENGTH


@pytest.mark.parametrize(("method", "block"), SPECULATIVE)
@pytest.mark.parametrize("chunk", [0, 8])
def test_abort_after_any_number_of_steps(tiny, pinned, method, block, chunk):
    """Every point of prefill, draft and verify; the other request is not disturbed."""
    prompts, ar = pinned
    for steps in range(6):
        engine = engine_of(
            tiny, planner_of(method, block), kv_tokens=1536, prefill_chunk=chunk, max_requests=2
        )
        engine.submit(request("gone", prompts[0], 32))
        engine.submit(request("stays", prompts[1], 20))
        events = [e for _ in range(steps) for e in engine.step()]
        assert engine.abort("gone")
        engine.check()
        assert not engine.abort("gone"), "it is not known any more"
        rest = engine.run()
        engine.assert_all_returned()
        done = {e.key: e.finished for e in [*events, *rest] if e.finished}
        assert done["gone"].finish == Finish.ABORT
        got = done["gone"].tokens.tolist()
        assert got == ar[0].tokens[: len(got)].tolist()
        assert done["stays"].tokens.tolist() == ar[1].tokens[:20].tolist()
        assert next(e for e in rest if e.key == "gone").finished is not None


def test_abort_while_waiting_for_a_slot(tiny, pinned):
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of("linear", 8), max_requests=1)
    for i in range(3):
        engine.submit(request(i, prompts[i], 12))
    engine.step()
    assert engine.abort("1")
    done = finish_all(engine)
    engine.assert_all_returned()
    assert done["1"].finish == Finish.ABORT
    assert len(done["1"].tokens) == 0
    assert done["2"].tokens.tolist() == ar[2].tokens[:12].tolist()
    assert not engine.abort("nobody")


@pytest.mark.parametrize("victim", ["other", "self"])
def test_abort_from_inside_a_step(tiny, pinned, victim):
    """A stop callback that aborts: the step in progress is not torn apart."""
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of("linear", 8), kv_tokens=2048)

    def stop(token):
        if len(heard) == 4:
            engine.abort(victim)
        heard.append(token)
        return False

    heard: list[int] = []
    engine.submit(request("self", prompts[0], 24, stop=stop))
    engine.submit(request("other", prompts[1], 24))
    done = finish_all(engine)
    engine.assert_all_returned()
    assert done[victim].finish == Finish.ABORT
    survivor = {"other": "self", "self": "other"}[victim]
    index = 0 if survivor == "self" else 1
    assert done[survivor].tokens.tolist() == ar[index].tokens[:24].tolist()
    got = done[victim].tokens.tolist()
    assert got == ar[1 - index].tokens[: len(got)].tolist()


def test_two_hundred_random_aborts_then_a_normal_request(random_tiny, random_prompts):
    rng = np.random.default_rng(0)
    engine = engine_of(random_tiny, planner_of("overlap", 8), max_requests=4, prefill_chunk=8)
    alive, made = [], 0
    while made < 200 or alive:
        while made < 200 and len(alive) < 7:
            engine.submit(request(made, random_prompts[made % 8], 30))
            alive.append(str(made))
            made += 1
        for _ in range(int(rng.integers(0, 3))):
            for event in engine.step():
                if event.finished and event.finished.finish != Finish.ABORT:
                    alive.remove(event.key)
        if alive:
            gone = alive.pop(int(rng.integers(len(alive))))
            assert engine.abort(gone)
    engine.run()
    engine.assert_all_returned()
    ar = generate(random_tiny, planner_of("ar"), random_prompts[:1], 30)
    engine.submit(request("normal", random_prompts[0], 30))
    assert finish_all(engine)["normal"].tokens.tolist() == ar[0].tokens.tolist()


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
