"""Stops, budgets, aborts and faults at every token of a window: nothing lost, nothing leaked."""

import numpy as np
import pytest
from harness import (
    assert_lossless,
    engine_of,
    finish_all,
    generate,
    planner_of,
    request,
)

from recguide_core.records import Finish, Origin

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
