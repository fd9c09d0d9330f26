"""Committed KV equals a fresh prefill after every round; nothing else in the pool matters."""

import numpy as np
import pytest
import torch
from drafters import NotingDrafter
from harness import (
    Outcomes,
    assert_lossless,
    engine_of,
    finish_all,
    generate,
    planner_of,
    request,
)
from packed import commit_prompt, make_pool

from recguide_core.engine.methods import make_planner

METHODS = [
    ("ar", None),
    ("linear", 4),
    ("linear", 16),
    ("overlap", 4),
    ("overlap", 16),
    ("tidar", 4),
    ("recguide", None),
]


class KvWatch:
    """After a step: K and V of the committed positions against one plain prefill of them."""

    def __init__(self, tolerance: float = 2e-4, every: int = 1) -> None:
        self.tolerance = tolerance
        self.every = every
        self.steps = self.compared = 0

    def __call__(self, engine) -> None:
        self.steps += 1
        if self.steps % self.every:
            return
        for slot, live in engine.scheduler.running.items():
            P = engine.pages.committed(slot)
            if not P:
                continue
            text = [*live.request.prompt.tolist(), *live.tokens][:P]
            fresh = make_pool(engine.model, P + 16, 16)
            commit_prompt(engine.model, fresh, 0, text)
            mine = torch.from_numpy(engine.pool.slots(slot, 0, P))
            theirs = torch.from_numpy(fresh.slots(0, 0, P))
            for ours, other in ((engine.pool.k, fresh.k), (engine.pool.v, fresh.v)):
                for layer in range(engine.model.config.layers):
                    gap = (ours[layer][mine] - other[layer][theirs]).abs().max()
                    assert gap <= self.tolerance, f"layer {layer}, P = {P}: {gap}"
            self.compared += 1


@pytest.mark.parametrize(("method", "block"), METHODS)
def test_committed_kv_equals_a_fresh_prefill(tiny, pinned, method, block):
    prompts, _ = pinned
    watch, seen = KvWatch(), Outcomes()
    generate(
        tiny,
        planner_of(method, block),
        prompts[:3],
        24,
        max_requests=3,
        prefill_chunk=16,
        on_step=watch,
        observer=seen,
    )
    assert watch.compared > 10
    if method in ("overlap", "tidar"):
        assert max(seen.hits) >= 0, "also behind a branch hit"


def test_committed_kv_after_every_accepted_length(random_tiny, random_prompts):
    """A drafter that is wrong at each slot in turn makes all of them happen."""
    prompts = random_prompts[2:6]
    ar = generate(random_tiny, planner_of("ar"), prompts, 30, max_requests=1)
    texts = [p + d.tokens.tolist() for p, d in zip(prompts, ar, strict=True)]
    watch, seen = KvWatch(), Outcomes()
    generate(
        random_tiny,
        make_planner("dflash", 6),
        prompts,
        30,
        drafter=NotingDrafter(random_tiny.config.vocab, texts),
        max_requests=4,
        observer=seen,
        on_step=watch,
    )
    assert set(seen.accepted) == {1, 2, 3, 4, 5, 6}
    assert watch.compared > 50


def test_committed_kv_of_scattered_pages(random_tiny, random_prompts):
    """One-token pages, three requests growing into each other."""
    watch = KvWatch()
    generate(
        random_tiny,
        planner_of("linear", 5),
        random_prompts[:5],
        30,
        max_requests=3,
        page_size=1,
        kv_tokens=150,
        on_step=watch,
    )
    assert watch.compared > 50


@pytest.mark.parametrize(("method", "block"), [*METHODS, ("linear", 3), ("adaptive", None)])
def test_slots_that_are_not_committed_do_not_matter(tiny, pinned, method, block):
    prompts, ar = pinned
    got = generate(
        tiny,
        planner_of(method, block),
        prompts[:5],
        24,
        max_requests=3,
        prefill_chunk=16,
        poison=True,
        kv_tokens=1500,
    )
    cut = generate(tiny, planner_of("ar"), prompts[:5], 24, max_requests=1)
    assert_lossless(tiny, prompts[:5], cut, got)
    assert ar


def test_poison_would_be_seen(tiny, pinned):
    """The test above can fail: poisoning a committed slot changes the output."""
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of("ar"), kv_tokens=1024)
    engine.submit(request(0, prompts[0], 24))
    for _ in range(3):
        engine.step()
    engine.pool.k[0][torch.from_numpy(engine.pool.slots(0, 4, 8))] = 1e6
    engine.pool.v[0][torch.from_numpy(engine.pool.slots(0, 4, 8))] = 1e6
    done = finish_all(engine)["0"]
    assert done.tokens.tolist() != ar[0].tokens[:24].tolist()


def test_scattered_and_adjacent_pages_give_the_same_output(tiny, pinned):
    prompts, ar = pinned
    scattered = []

    def look(engine):
        scattered.extend(engine.pages.run_start(s) < 0 for s in engine.scheduler.running)

    got = generate(
        tiny,
        planner_of("linear", 8),
        prompts[:4],
        32,
        max_requests=4,
        page_size=2,
        kv_tokens=2 * sum(len(p) + 50 for p in prompts[:4]) // 2,
        on_step=look,
    )
    assert_lossless(tiny, prompts[:4], ar, got)
    assert any(scattered)
    assert np.mean(scattered) > 0.1
