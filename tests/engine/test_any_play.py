"""Random plays of any methods together: the output is AR, drafts and hits are what they must be."""

import numpy as np
from harness import Outcomes, planner_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import (
    Script,
    expected_output,
    random_script,
    scripted_engine,
    scripted_request,
)

from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.records import Finish, RowKind

VERIFY, DRAFT, BRANCH = RowKind.VERIFY, RowKind.DRAFT, RowKind.BRANCH


METHODS = ["ar", "linear", "linear:recipe", "overlap", "tidar", "adaptive", "recguide"]


class Oracle:
    """Observer: verify rows hold the scripted drafts of their places; hits by brute force."""

    def __init__(self, scripts):
        self.scripts = scripts
        self.hits = 0

    def on_rounds(self, view):
        for i, slot in enumerate(view.outcome.who.tolist()):
            s = self.scripts[view.keys[slot]]
            start, width = int(view.table.committed[slot]), int(view.outcome.width[i])
            row = view.step.main[view.verified.entry[i]]
            first = view.step.row_start[row]
            tokens = view.step.rows.tokens[first : first + width].tolist()
            assert tokens[0] == s.truth[start]
            assert tokens[1:] == [s.at(start + j).token for j in range(1, width)]
            matched = 0
            while matched < width - 1 and tokens[matched + 1] == s.truth[start + matched + 1]:
                matched += 1
            assert view.outcome.matched[i] == matched
            self._check_hit(view, i, s, start, matched)

    def _check_hit(self, view, i, s, start, matched):
        entry = view.verified.entry[i]
        seed = start + matched + 1
        truth = s.truth[seed] if seed < len(s.truth) else None
        reusable = []
        for k, kind in enumerate(view.plan.branch_kind[entry].tolist()):
            if kind < 0 or view.plan.branch_parent[entry, k] != matched + 1:
                continue
            alt = view.plan.branch_alt[entry, k]
            slot0 = {0: alt, 1: s.at(seed).token, 2: truth}[kind]
            if slot0 == truth:
                reusable.append(k)
        got = int(view.outcome.hit[i])
        assert (got in reusable) if reusable else (got == -1)
        self.hits += got >= 0


@st.composite
def plays(draw):
    return {
        "seed": draw(st.integers(0, 10**6)),
        "methods": draw(st.lists(st.sampled_from(METHODS), min_size=1, max_size=3)),
        "blocks": draw(st.lists(st.integers(1, 32), min_size=3, max_size=3)),
        "requests": draw(st.integers(1, 9)),
        "slots": draw(st.integers(1, 5)),
        "page_size": draw(st.sampled_from([1, 4, 16])),
        "kv": draw(st.sampled_from([160, 224, 4096])),
        "chunk": draw(st.sampled_from([0, 3, 8])),
        "batching": draw(st.sampled_from(["ragged", "bucketed"])),
        "aborts": draw(st.booleans()),
    }


@given(plays())
@settings(max_examples=120, deadline=None)
def test_any_play_of_any_methods_gives_ar(play):
    """Methods, blocks, batching, chunks, scarce pages, EOS, budgets, context, stops, aborts."""
    rng = np.random.default_rng(play["seed"])
    context = 150
    scripts = {str(i): random_script(rng, 160, eos=True) for i in range(play["requests"])}
    planners = [
        planner_of(m, b if m in ("linear", "overlap", "tidar") else None, play["batching"])
        for m, b in zip(play["methods"], play["blocks"], strict=False)
    ]
    engine = scripted_engine(
        scripts,
        planners,
        context=context,
        kv_tokens=play["kv"],
        page_size=play["page_size"],
        prefill_chunk=play["chunk"],
        max_requests=play["slots"],
        max_admitted=play["slots"] + 2,
        batching=play["batching"],
        bucket_wait=3,
    )
    engine.observers.append(Oracle(scripts))
    budgets, stops = {}, {}
    for key, s in scripts.items():
        budgets[key] = int(rng.integers(1, 140))
        stops[key] = frozenset({s.truth[int(rng.integers(s.prompt, 160))]})
        stops[key] = stops[key] if rng.random() < 0.3 else frozenset()
        engine.submit(
            scripted_request(
                key,
                s,
                min(budgets[key], play["kv"] - s.prompt),
                stop_ids=stops[key],
                planner=int(rng.integers(len(planners))),
            ),
            int(rng.choice([0, 0, 0, 1, 5, 32])),
        )
        budgets[key] = min(budgets[key], play["kv"] - s.prompt)
    done, steps = {}, 0
    while not engine.idle:
        steps += 1
        assert steps < 6000, "no progress"
        done |= {e.key: e.finished for e in engine.step() if e.finished}
        engine.pages.check_integrity()
        if play["aborts"] and rng.random() < 0.05:
            engine.abort(str(rng.integers(play["requests"])))
    assert engine.pages.free_pages == engine.pages.pages
    assert sorted(done) == sorted(scripts)
    for key, s in scripts.items():
        want = expected_output(s, budgets[key], context, stops[key])
        got = done[key].tokens.tolist()
        if done[key].finish == Finish.ABORT:
            assert got == want[: len(got)]
        else:
            assert got == want


def test_buckets_do_not_starve_anyone():
    """A rare block size in a crowd: it waits at most the bound, counted in forwards."""
    scripts = {str(i): Script.plain(4, 200) for i in range(9)}
    planners = [planner_of("linear", 8), planner_of("linear", 5)]
    engine = scripted_engine(
        scripts,
        planners,
        batching="bucketed",
        max_requests=4,
        max_admitted=9,
        bucket_wait=6,
        context=190,
    )
    for key, s in scripts.items():
        engine.submit(scripted_request(key, s, 150, planner=int(key == "8")))
    longest, waits = 0, dict.fromkeys(scripts, 0)
    while not engine.idle:
        engine.step()
        ran = set(engine.executor.kinds[-1])
        for live in engine.scheduler.running.values():
            key = live.request.key
            waits[key] = 0 if key in ran else waits[key] + 1
            longest = max(longest, waits[key])
        decoding = [k for k in engine.executor.kinds[-1].values() if RowKind.PREFILL not in k]
        assert len(decoding) <= 4
        assert len({tuple(k) for k in decoding}) <= 1, "one kind of row a forward"
    assert longest <= 6 + 4, "the bound, and those whose turn came at the same time"


def test_short_pages_narrow_rounds_and_preempt_the_youngest():
    """Four requests in pages for two: narrowed blocks, dropped branches, recomputed prompts."""
    rng = np.random.default_rng(3)
    scripts = {str(i): random_script(rng, 100) for i in range(4)}
    engine = scripted_engine(scripts, [OverlapPlanner(16)], kv_tokens=128, max_requests=4)
    seen = Outcomes()
    engine.observers += [seen, Oracle(scripts)]
    ended = []
    for key, s in scripts.items():
        engine.submit(scripted_request(key, s, 60))
    for event in engine.run():
        if event.finished:
            ended.append(event.key)
            assert event.finished.tokens.tolist() == expected_output(scripts[event.key], 60, 150)
    assert engine.scheduler.preemptions > 0
    assert 1 in seen.widths, "a draft that did not fit became one token"
    assert ended[0] == "0", "the oldest is never the victim"
    assert engine.pages.free_pages == engine.pages.pages
