"""Every method on real and random models: lossless, mixed in one batch, over a load ramp."""

import numpy as np
import pytest
from drafters import NotingDrafter
from harness import (
    Outcomes,
    ToyCost,
    assert_lossless,
    check_identities,
    demo_prompts,
    engine_of,
    generate,
    planner_of,
    request,
    toy_guidance,
)
from packed import make_pool, run_rows

from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import METHODS, LinearPlanner, recipe_block
from recguide_core.engine.planners_adaptive import AdaptivePlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.errors import UsageError
from recguide_core.policy.branches import BranchRule
from recguide_core.records import BranchKind, Row, Source

CASES = [
    ("overlap", 2),
    ("overlap", 4),
    ("overlap", 16),
    ("overlap", 32),
    ("tidar", 2),
    ("tidar", 4),
    ("tidar", 8),
    ("adaptive", None),
    ("recguide", None),
    ("linear:recipe", None),
]


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("method", "block"), CASES)
def test_equal_to_ar_on_the_pinned_prompts(tiny, pinned, method, block, batch):
    prompts, ar = pinned
    count = 2 if batch == 1 else 8
    got = generate(
        tiny,
        planner_of(method, block),
        prompts[:count],
        32,
        max_requests=batch,
        prefill_chunk=16 if batch == 1 else 0,
    )
    assert_lossless(tiny, prompts[:count], ar, got)
    if method == "overlap":
        for done in got:
            check_identities(done)


@pytest.mark.parametrize(("method", "block"), CASES)
def test_equal_to_ar_on_a_random_model(random_tiny, random_prompts, method, block):
    ar = generate(random_tiny, planner_of("ar"), random_prompts, 14, max_requests=1)
    got = generate(
        random_tiny,
        planner_of(method, block),
        random_prompts,
        14,
        max_requests=4,
        prefill_chunk=8,
        page_size=3,
        kv_tokens=600,
    )
    assert_lossless(random_tiny, random_prompts, ar, got)


@pytest.mark.parametrize("method", ["overlap", "tidar", "adaptive", "recguide"])
def test_bucketed_batching_equals_ar(tiny, pinned, method):
    prompts, ar = pinned
    got = generate(
        tiny,
        planner_of(method, 8 if method in ("overlap", "tidar") else None, "bucketed"),
        prompts,
        32,
        batching="bucketed",
        max_requests=2,
        max_admitted=6,
        bucket_wait=3,
    )
    assert_lossless(tiny, prompts, ar, got)


@pytest.mark.parametrize("delta", [0.0, 0.9, 1.1])
@pytest.mark.parametrize("corrections", [0, 1, 2])
def test_overlap_at_any_rule(tiny, pinned, delta, corrections):
    prompts, ar = pinned
    seen = Outcomes()
    rule = BranchRule(delta, corrections, continuation=corrections != 1)
    got = generate(tiny, OverlapPlanner(8, rule), prompts[:4], 24, max_requests=4, observer=seen)
    cut = [d.tokens[:24].tolist() for d in ar[:4]]
    assert [d.tokens.tolist() for d in got] == cut
    hits = set(seen.hits) - {-1}
    if corrections == 0:
        assert BranchKind.CORRECTION not in hits
    if corrections == 1:
        assert BranchKind.CONTINUATION not in hits
    for done in got:
        check_identities(done)


def test_overlap_without_branches_is_linear(tiny, pinned):
    prompts, _ = pinned
    rule = BranchRule(0.0, 0, continuation=False)
    got = generate(tiny, OverlapPlanner(8, rule), prompts[:3], 24)
    linear = generate(tiny, LinearPlanner(8), prompts[:3], 24)
    for a, b in zip(got, linear, strict=True):
        assert (a.rounds, a.forwards, a.reused) == (b.rounds, b.forwards, b.reused)


def test_overlap_saves_forwards_and_leaves_accepted_lengths(tiny):
    """h > 0: the same rounds up to branch effects, fewer forwards."""
    prompts = demo_prompts(tiny, 10)
    linear = generate(tiny, planner_of("linear", 8), prompts, 32)
    overlap = generate(tiny, planner_of("overlap", 8), prompts, 32)
    assert sum(d.reused for d in overlap) > 0
    assert sum(d.forwards for d in overlap) < sum(d.forwards for d in linear)


def test_tidar_needs_one_forward_a_round(tiny, pinned):
    """First draft beside the prompt, then every acceptance length has its group."""
    prompts, _ = pinned
    for done in generate(tiny, planner_of("tidar", 4), prompts, 30):
        last_rounds = 2
        assert done.forwards == 2 * done.rounds - done.reused
        assert done.rounds - done.reused <= last_rounds, "only the tail may lack a group"


def test_tau_of_linear_is_twice_tokens_per_forward(tiny, pinned):
    prompts, _ = pinned
    for done in generate(tiny, planner_of("linear", 16), prompts, 30):
        if done.rounds:
            tau = 2 * done.round_tokens / done.forwards
            assert tau == pytest.approx(done.round_tokens / done.rounds)


def test_methods_and_blocks_mixed_in_one_batch(tiny, pinned):
    """Each request names its planner and some their block; all rows share forwards."""
    prompts, ar = pinned
    names = ["ar", "linear", "overlap", "tidar", "adaptive", "recguide"]
    planners = [planner_of(n, 8 if n in ("linear", "overlap", "tidar") else None) for n in names]
    seen = Outcomes()
    got = generate(
        tiny,
        planners,
        prompts,
        32,
        choose=[0, 1, 2, 3, 4, 5, 1, 2],
        fixed_block=[0, 3, 32, 2, 16, 5, 1, 0],
        max_requests=8,
        prefill_chunk=16,
        observer=seen,
    )
    assert_lossless(tiny, prompts, ar, got)
    assert len(set(seen.widths)) >= 5


@pytest.mark.parametrize("method", ["linear", "overlap", "tidar", "adaptive", "recguide"])
@pytest.mark.parametrize("fixed", [1, 3, 32])
def test_a_block_asked_for_is_never_exceeded(tiny, pinned, method, fixed):
    prompts, ar = pinned
    seen = Outcomes()
    got = generate(
        tiny,
        planner_of(method, 8 if method in ("linear", "overlap", "tidar") else None),
        prompts[:3],
        24,
        fixed_block=[fixed] * 3,
        observer=seen,
    )
    assert [d.tokens.tolist() for d in got] == [d.tokens[:24].tolist() for d in ar[:3]]
    assert max(seen.widths) <= fixed


def test_load_ramp_up_and_down_again(tiny, pinned):
    """1 -> 16 -> 1 requests: regimes change, tokens do not, and the last one recovers."""
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of("recguide"), max_requests=16, kv_tokens=8192)
    engine.submit(request("first", prompts[0], 32))
    done, branches = {}, {}

    class Branches:
        """Branches a verify row, by load, in order of time."""

        def on_rounds(self, view):
            used = int((view.plan.branch_kind >= 0).sum())
            branches.setdefault(engine.load, []).append(used / len(view.outcome.who))

    engine.observers.append(Branches())
    for _ in range(4):
        done |= {e.key: e.finished for e in engine.step() if e.finished}
    for i in range(16):
        engine.submit(request(i, prompts[i % 8], 24))
    while len(engine.scheduler.running) + len(engine.scheduler.waiting) > 1:
        done |= {e.key: e.finished for e in engine.step() if e.finished}
    engine.submit(request("last", prompts[3], 32))
    done |= {e.key: e.finished for e in engine.run() if e.finished}
    engine.assert_all_returned()
    assert done["first"].tokens.tolist() == ar[0].tokens.tolist()
    assert done["last"].tokens.tolist() == ar[3].tokens.tolist()
    for i in range(16):
        assert done[str(i)].tokens.tolist() == ar[i % 8].tokens[:24].tolist()
    assert np.mean(branches[1][:2]) > 0.4, "alone, overlap pays"
    assert np.mean(branches[16][2:]) < 0.1, "in a crowd it does not"
    assert np.mean(branches[1][-3:]) > 0.4, "and alone again it does"


@pytest.mark.parametrize("part", ["overlap", "adaptive", "priced"])
def test_recguide_with_a_part_switched_off(tiny, pinned, part):
    prompts, ar = pinned
    seen = Outcomes()
    planner = RecGuidePlanner(toy_guidance(), **{part: False})
    got = generate(tiny, planner, prompts[:4], 32, observer=seen)
    assert_lossless(tiny, prompts[:4], ar, got)
    if part == "overlap":
        assert set(seen.hits) == {-1}


class ByToken(ToyCost):
    """A device on which a draft costs what its tokens cost."""

    def ms(self, shapes):
        return 1.0 + shapes.query_tokens.astype(np.float64)


@pytest.mark.parametrize("rho", [0.0, 5.0])
def test_extreme_prices_choose_the_largest_block_and_plain_ar(tiny, pinned, rho):
    prompts, ar = pinned
    seen = Outcomes()
    planner = RecGuidePlanner(toy_guidance(rho={1: rho}, cost=ByToken()), overlap=False)
    got = generate(tiny, planner, prompts[:3], 80, observer=seen)
    cut = generate(tiny, planner_of("ar"), prompts[:3], 80)
    assert_lossless(tiny, prompts[:3], cut, got)
    if rho == 0.0:
        assert max(seen.widths) == 32
    else:
        assert np.median(seen.widths) == 1
        assert max(seen.widths) > 1, "a request on AR still probes"
    assert ar


def test_the_adaptive_menu_is_the_papers(tiny, pinned):
    prompts, _ = pinned
    seen = Outcomes()
    generate(tiny, AdaptivePlanner(toy_guidance()), prompts[:4], 32, observer=seen)
    assert set(seen.widths) <= {8, 16, 32}
    assert len(set(seen.widths)) >= 2


# -- a drafter model ------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_a_drafter_gets_every_hidden_state_and_stays_lossless(random_tiny, random_prompts, batch):
    prompts = random_prompts[2:6]
    ar = generate(random_tiny, planner_of("ar"), prompts, 20, max_requests=1)
    texts = [p + d.tokens.tolist() for p, d in zip(prompts, ar, strict=True)]
    drafter = NotingDrafter(random_tiny.config.vocab, texts)
    seen = Outcomes()

    def hidden_is_fresh(engine):
        for slot, live in engine.scheduler.running.items():
            P = engine.pages.committed(slot)
            text = [*live.request.prompt.tolist(), *live.tokens][:P]
            got = drafter.held[slot][:P]
            assert len(got) == P
            assert (got - hidden_states(random_tiny, text)).abs().max() < 1e-3

    got = generate(
        random_tiny,
        make_planner("dflash", 5),
        prompts,
        20,
        drafter=drafter,
        max_requests=batch,
        prefill_chunk=6,
        observer=seen,
        on_step=hidden_is_fresh,
    )
    assert_lossless(random_tiny, prompts, ar, got)
    assert set(seen.accepted) == {1, 2, 3, 4, 5}
    for done in got:
        check_identities(done)
        assert done.reused == 0


def hidden_states(model, text):
    """Input of the head at every token of a text, by one plain prefill."""
    kept = []
    head = model.transformer.head
    model.transformer.head = lambda hidden: kept.append(hidden.clone()) or head(hidden)
    try:
        pool = make_pool(model, len(text) + 16, 16)
        pool.reserve(0, len(text))
        pool.begin(0, len(text))
        run_rows(model, pool, [Row(0, text, 0, commit=True)])
    finally:
        model.transformer.head = head
    return model.transformer.normed(kept[0])


def test_a_drafter_beside_other_methods(random_tiny, random_prompts):
    """Rows of both models in one step, merged in order; sampling as well."""
    from recguide_core.records import Sampling

    prompts = random_prompts[2:6]
    settings = [Sampling(), Sampling(temperature=1.0, seed=1), Sampling(), Sampling()]
    ar = generate(random_tiny, planner_of("ar"), prompts, 16, sampling=settings, max_requests=1)
    texts = [p + d.tokens.tolist() for p, d in zip(prompts, ar, strict=True)]
    got = generate(
        random_tiny,
        [make_planner("dflash", 4), planner_of("overlap", 4)],
        prompts,
        16,
        choose=[0, 0, 1, 0],
        sampling=settings,
        drafter=NotingDrafter(random_tiny.config.vocab, texts),
        max_requests=4,
    )
    assert [d.tokens.tolist() for d in got] == [d.tokens.tolist() for d in ar]


# -- making planners ------------------------------------------------------------------------


def test_names_and_refusals():
    for name in METHODS:
        guidance = toy_guidance() if name in ("adaptive", "recguide") else None
        assert make_planner(name, None, guidance).name == name
    with pytest.raises(UsageError, match="overlap"):
        make_planner("overlapp")
    with pytest.raises(UsageError, match="calibrate"):
        make_planner("recguide")
    for block in (0, -1, 33):
        for name in ("linear", "tidar", "overlap", "dflash"):
            with pytest.raises(UsageError, match=str(block)):
                make_planner(name, block)
    assert [recipe_block(c) for c in (1, 4, 5, 32, 33, 128)] == [32, 32, 16, 16, 8, 8]
    assert Source.DRAFTER not in (Source.NONE, Source.DRAFT)
