"""Seeded sampling: every method, block and batch gives the tokens of seeded AR; logprobs too."""

import numpy as np
import pytest
from harness import engine_of, finish_all, generate, logits_after, planner_of, request

from recguide_core.kernels.sampling_torch import SamplingRows, perturb
from recguide_core.records import Finish, Sampling

METHODS = [
    ("linear", 2),
    ("linear", 8),
    ("linear", 32),
    ("overlap", 8),
    ("tidar", 4),
    ("adaptive", None),
    ("recguide", None),
]
SETTINGS = [
    Sampling(temperature=1.5, seed=1),
    Sampling(temperature=2.5, seed=2, top_p=0.9),
    Sampling(),
    Sampling(temperature=2.0, seed=3, top_k=5),
    Sampling(temperature=1.7, seed=4, min_p=0.1),
    Sampling(temperature=2.2, seed=-5, top_p=0.95, top_k=40, min_p=0.02),
    Sampling(temperature=2.0, seed=2**40 + 1, logit_bias=((300, 3.0), (301, -100.0))),
    Sampling(temperature=3.0, seed=7),
]


@pytest.fixture(scope="module")
def sampled(tiny, pinned):
    """Eight prompts, each with its own settings, by AR one at a time."""
    prompts, _ = pinned
    return generate(tiny, planner_of("ar"), prompts, 20, sampling=SETTINGS, max_requests=1)


def test_ar_draws_from_the_perturbed_logits_of_plain_prefills(tiny, pinned, sampled):
    import torch

    prompts, _ = pinned
    for i in (0, 1, 5):
        p, text = SETTINGS[i], list(prompts[i])
        for token in sampled[i].tokens[:6].tolist():
            rows = SamplingRows(
                rows=torch.tensor([0]),
                position=torch.tensor([len(text)]),
                seed=torch.tensor([p.seed]),
                temperature=torch.tensor([p.temperature]),
                top_p=torch.tensor([p.top_p]),
                min_p=torch.tensor([p.min_p]),
                top_k=torch.tensor([p.top_k]),
            )
            assert token == int(perturb(logits_after(tiny, text)[None], rows).argmax())
            text.append(token)


def test_sampling_does_something(sampled, pinned):
    _, greedy = pinned
    pairs = zip(sampled, greedy, strict=True)
    same = [a.tokens.tolist() == b.tokens[:20].tolist() for a, b in pairs]
    assert same[2], "the greedy one among them"
    assert not all(same)


@pytest.mark.parametrize(("method", "block"), METHODS)
def test_every_method_gives_seeded_ar(tiny, pinned, sampled, method, block):
    prompts, _ = pinned
    for batch in (1, 8):
        count = 8 if batch == 8 else 3
        got = generate(
            tiny,
            planner_of(method, block),
            prompts[:count],
            20,
            sampling=SETTINGS[:count],
            max_requests=batch,
            prefill_chunk=16,
        )
        for mine, reference in zip(got, sampled, strict=False):
            assert mine.tokens.tolist() == reference.tokens.tolist()
            assert mine.finish == reference.finish


def test_a_seed_gives_the_same_tokens_alone_and_in_any_company(tiny, pinned, sampled):
    prompts, _ = pinned
    engine = engine_of(tiny, planner_of("linear", 8), max_requests=3)
    for i in (5, 2, 7, 0):
        engine.submit(request(i, prompts[i], 20, sampling=SETTINGS[i]))
    done = finish_all(engine)
    for i in (5, 2, 7, 0):
        assert done[str(i)].tokens.tolist() == sampled[i].tokens.tolist()


def test_a_random_model_at_high_temperature(random_tiny, random_prompts):
    """Nearly flat laws: drafts under the same noise are still checked token by token."""
    hot = [Sampling(temperature=3.0, seed=i) for i in range(8)]
    ar = generate(random_tiny, planner_of("ar"), random_prompts, 16, sampling=hot, max_requests=1)
    for method, block in (("linear", 8), ("overlap", 6), ("tidar", 3)):
        got = generate(random_tiny, planner_of(method, block), random_prompts, 16, sampling=hot)
        assert [d.tokens.tolist() for d in got] == [d.tokens.tolist() for d in ar]


def test_two_seeds_differ_and_one_seed_repeats(tiny, pinned):
    prompts, _ = pinned
    outputs = []
    for seed in (1, 2, 1):
        sampling = Sampling(temperature=3.0, seed=seed)
        done = generate(tiny, planner_of("linear", 8), prompts[:1], 20, sampling=sampling)
        outputs.append(done[0].tokens.tolist())
    assert outputs[0] == outputs[2] != outputs[1]


def test_logit_bias_bans_and_forces(tiny, pinned):
    prompts, ar = pinned
    first = int(ar[0].tokens[1])
    for method, block in (("ar", None), ("linear", 8), ("overlap", 8)):
        banned = Sampling(logit_bias=((first, -1e4),))
        done = generate(tiny, planner_of(method, block), prompts[:1], 16, sampling=banned)[0]
        assert first not in done.tokens.tolist()
        forced = Sampling(logit_bias=((777, 1e4),))
        done = generate(tiny, planner_of(method, block), prompts[:1], 9, sampling=forced)[0]
        assert done.tokens.tolist() == [777] * 9


def test_mask_can_not_be_forced(tiny, pinned):
    prompts, _ = pinned
    forced = Sampling(logit_bias=((tiny.config.mask_id, 1e4),))
    done = generate(tiny, planner_of("linear", 8), prompts[:1], 9, sampling=forced)[0]
    assert tiny.config.mask_id not in done.tokens.tolist()


# -- logprobs -------------------------------------------------------------------------------


def test_logprobs_are_those_of_plain_prefills(tiny, pinned):
    prompts, _ = pinned
    done = generate(tiny, planner_of("ar"), prompts[:1], 8, options={"logprobs": 4})[0]
    text = list(prompts[0])
    for j, token in enumerate(done.tokens.tolist()):
        law = logits_after(tiny, text).log_softmax(-1)
        assert done.logprobs[j] == pytest.approx(float(law[token]), abs=1e-4)
        top = law.topk(4)
        assert [i for i, _ in done.top_logprobs[j]] == top.indices.tolist()
        assert [v for _, v in done.top_logprobs[j]] == pytest.approx(top.values.tolist(), abs=1e-4)
        text.append(token)


@pytest.mark.parametrize(("method", "block"), METHODS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=2.0, seed=3, top_p=0.8)])
def test_logprobs_equal_ar(tiny, pinned, method, block, sampling):
    """One for each emitted token, whatever window it came in."""
    prompts, _ = pinned
    wish = {"sampling": sampling, "options": {"logprobs": 2}}
    ar = generate(tiny, planner_of("ar"), prompts[:4], 18, max_requests=1, **wish)
    got = generate(tiny, planner_of(method, block), prompts[:4], 18, max_requests=4, **wish)
    for mine, reference in zip(got, ar, strict=True):
        assert mine.tokens.tolist() == reference.tokens.tolist()
        assert len(mine.logprobs) == len(mine.top_logprobs) == len(mine.tokens)
        assert np.allclose(mine.logprobs, reference.logprobs, atol=1e-4)
        for one, other in zip(mine.top_logprobs, reference.top_logprobs, strict=True):
            assert len(one) == 2
            assert np.allclose([v for _, v in one], [v for _, v in other], atol=1e-4)


def test_logprobs_end_with_the_stop_inside_a_window(tiny, pinned):
    prompts, ar = pinned
    text = ar[0].tokens.tolist()
    stop = next(t for t in text[3:8] if text.index(t) >= 3)
    engine = engine_of(tiny, planner_of("linear", 16))
    engine.submit(request("r", prompts[0], 30, logprobs=1, stop_ids=frozenset({stop})))
    events = engine.run()
    done = events[-1].finished
    assert done.finish == Finish.STOP
    assert len(done.logprobs) == len(done.tokens) == text.index(stop) + 1
    assert sum(len(e.logprobs) for e in events) == len(done.tokens)
    assert all(len(e.logprobs) == len(e.top_logprobs) == len(e.tokens) for e in events)


def test_requests_with_and_without_logprobs_share_a_batch(tiny, pinned):
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of("linear", 8))
    for i, wish in enumerate((None, 0, 5, None)):
        engine.submit(request(i, prompts[i], 12, logprobs=wish))
    done = finish_all(engine)
    assert done["0"].logprobs is done["3"].logprobs is None
    assert [len(top) for top in done["1"].top_logprobs] == [0] * 12
    assert [len(top) for top in done["2"].top_logprobs] == [5] * 12
    for i in range(4):
        assert done[str(i)].tokens.tolist() == ar[i].tokens[:12].tolist()
