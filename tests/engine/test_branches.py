"""Every outcome of a prospective branch, made to happen by a script."""

import numpy as np
import pytest
from harness import Outcomes, planner_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import (
    EOS,
    JUNK,
    Said,
    Script,
    expected_output,
    scripted_engine,
    scripted_request,
)

from recguide_core.engine.outcomes import BranchOutcome, OutcomeCounter
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.policy.branches import DELTA, BranchRule
from recguide_core.records import Finish, RowKind, Source

B, P = 8, 10
VERIFY, DRAFT, BRANCH = RowKind.VERIFY, RowKind.DRAFT, RowKind.BRANCH
SEED = P
"""Position of the first emitted token, the seed of the first round; drafts lie behind it."""


class Round:
    """The first round of an overlap request, and what the second one is made from."""

    def __init__(self, script: Script, max_tokens=60, context=150, planner=None, **options):
        self.script = script
        self.engine = scripted_engine(
            {"r": script}, [planner or OverlapPlanner(B)], context=context
        )
        self.counter = OutcomeCounter(DELTA, frozenset({EOS}))
        self.engine.observers.append(self.counter)
        self.engine.submit(scripted_request("r", script, max_tokens, **options))
        self.events = []
        while len(self.events) < 2 and not self.engine.idle:
            self.events += self.engine.step()
        self.first = self.events[1] if len(self.events) > 1 else None
        self.kinds = [k["r"] for k in self.engine.executor.kinds]
        while not self.engine.idle and len(self.events) < 3:
            self.events += self.engine.step()
        self.next = self.events[2] if len(self.events) > 2 else None
        while not self.engine.idle:
            self.events += self.engine.step()
        self.engine.pages.check_integrity()
        assert self.engine.pages.free_pages == self.engine.pages.pages
        self.done = self.events[-1].finished
        want = expected_output(script, max_tokens, context, options.get("stop_ids", ()))
        assert self.done.tokens.tolist() == want
        assert self.done.forwards == 2 * self.done.rounds - self.done.reused

    @property
    def branches(self) -> int:
        """Branch rows beside the first verify row."""
        return self.kinds[-1].count(BRANCH)


def counts_of(counter: OutcomeCounter) -> dict:
    total: dict = {}
    for group in counter.counts.values():
        for outcome, count in group.items():
            total[outcome] = total.get(outcome, 0) + count
    return total


def script() -> Script:
    return Script.plain(P)


def test_no_risk_and_full_acceptance_reuses_the_continuation():
    r = Round(script())
    assert r.kinds == [[RowKind.PREFILL], [DRAFT], [VERIFY, BRANCH]]
    assert r.first.accepted == B
    assert r.next.source == Source.CONTINUATION
    assert r.done.reused == r.done.rounds - 1
    assert counts_of(r.counter)[BranchOutcome.CONTINUATION_REUSED] > 0


def test_continuation_with_another_bonus_token_is_dropped():
    s = script()
    s.wrong(SEED + B)
    r = Round(s)
    assert (r.first.accepted, r.first.hit) == (B, -1)
    assert r.next.source == Source.DRAFT
    assert counts_of(r.counter)[BranchOutcome.CONTINUATION_WRONG] == 1


@pytest.mark.parametrize("p", [1, 2, 5, B - 1])
def test_correction_at_the_first_risky_position_is_reused(p):
    s = script()
    s.wrong(SEED + p, risky=True, alt_right=True)
    r = Round(s)
    assert r.branches == 2
    assert (r.first.accepted, r.first.hit) == (p, 0)
    assert r.next.source == Source.CORRECTION
    assert counts_of(r.counter)[BranchOutcome.CORRECTION_REUSED] == 1


def test_correction_with_the_wrong_token_is_dropped():
    s = script()
    s.wrong(SEED + 3, risky=True)
    r = Round(s)
    assert (r.first.accepted, r.first.hit) == (3, -1)
    assert r.next.source == Source.DRAFT
    assert counts_of(r.counter)[BranchOutcome.CORRECTION_WRONG] == 1


@pytest.mark.parametrize("right", [True, False])
def test_correction_at_the_second_risky_position(right):
    s = script()
    s.risky(SEED + 2)
    s.wrong(SEED + 5, risky=True, alt_right=right)
    r = Round(s)
    assert r.branches == 3
    assert (r.first.accepted, r.first.hit) == (5, 1 if right else -1)
    assert r.next.source == (Source.CORRECTION if right else Source.DRAFT)


def test_mismatch_before_between_and_behind():
    cases = {
        BranchOutcome.BEFORE: (2, (4, 6)),
        BranchOutcome.BETWEEN: (5, (3, 6)),
        BranchOutcome.BEHIND: (7, (3, 6)),
    }
    for outcome, (error, risky) in cases.items():
        s = script()
        for p in risky:
            s.risky(SEED + p)
        s.wrong(SEED + error)
        r = Round(s)
        assert r.branches == 3
        assert (r.first.accepted, r.first.hit) == (error, -1)
        assert r.next.source == Source.DRAFT
        assert counts_of(r.counter)[outcome] == 1


def test_mismatch_without_any_risk():
    s = script()
    s.wrong(SEED + 4)
    r = Round(s)
    assert r.branches == 1
    assert (r.first.accepted, r.first.hit) == (4, -1)
    assert counts_of(r.counter)[BranchOutcome.NO_RISK] == 1


def test_three_risky_positions_leave_no_continuation_and_no_third_branch():
    s = script()
    for p in (2, 4, 6):
        s.risky(SEED + p)
    r = Round(s)
    assert r.branches == 2
    assert (r.first.accepted, r.first.hit) == (B, -1)
    assert counts_of(r.counter)[BranchOutcome.FULL_WITHOUT] >= 1
    s = script()
    for p in (2, 4):
        s.risky(SEED + p)
    s.wrong(SEED + 6, risky=True, alt_right=True)
    r = Round(s)
    assert r.first.hit == -1
    assert r.next.source == Source.DRAFT


def test_exactly_two_risky_positions_keep_the_continuation():
    s = script()
    for p in (2, 4):
        s.risky(SEED + p)
    r = Round(s)
    assert r.branches == 3
    assert (r.first.accepted, r.first.hit) == (B, 2)
    assert r.next.source == Source.CONTINUATION


def test_a_margin_equal_to_delta_is_not_risky():
    s = script()
    s.drafts[SEED + 3] = Said(s.truth[SEED + 3], DELTA, JUNK)
    assert Round(s).branches == 1


def test_a_risky_position_without_an_alternative_gets_no_branch_but_counts():
    s = script()
    s.drafts[SEED + 2] = Said(s.truth[SEED + 2], 0.1, -1)
    s.drafts[SEED + 3] = Said(s.truth[SEED + 3], 0.1, -1)
    s.wrong(SEED + 5, risky=True, alt_right=True)
    r = Round(s)
    assert r.branches == 0
    assert r.next.source == Source.DRAFT


def test_reuse_is_recursive():
    """A reused block carries its margins, so its own round is fused again."""
    s = script()
    s.wrong(SEED + 3, risky=True, alt_right=True)
    s.wrong(SEED + 3 + 4, risky=True, alt_right=True)
    r = Round(s)
    assert [e.source for e in r.events[1:4]] == [
        Source.DRAFT,
        Source.CORRECTION,
        Source.CORRECTION,
    ]
    assert [e.accepted for e in r.events[1:3]] == [3, 4]
    assert r.kinds.count([DRAFT]) == 1


@pytest.mark.parametrize("budget", range(1, 2 * B + 3))
def test_no_branch_behind_the_budget(budget):
    """p >= remaining: there is no next round, so nothing is prepared for it."""
    s = script()
    s.risky(SEED + 2)
    r = Round(s, max_tokens=budget)
    assert r.done.finish == Finish.LENGTH
    if len(r.kinds) > 2:
        remaining = budget - 1
        assert r.branches == int(remaining > 2) + int(remaining > B)


@pytest.mark.parametrize("room", range(1, 3 * B))
def test_no_branch_behind_the_context(room):
    """Every rest of a context, counted from the first emitted token."""
    s = script()
    s.risky(SEED + 2)
    r = Round(s, context=P + room)
    assert r.done.finish == Finish.LENGTH
    assert len(r.done.tokens) == room
    if len(r.kinds) > 2 and room >= B:
        left = room
        assert r.branches == int(left >= 2 + B) + int(left >= 2 * B)


@pytest.mark.parametrize("method", ["linear", "overlap", "tidar"])
@pytest.mark.parametrize("place", range(2 * B + 2))
@pytest.mark.parametrize("way", ["eos", "stop id", "callback"])
def test_an_end_at_every_place_of_a_window_discards_the_branch(method, place, way):
    """EOS or a stop among accepted tokens, as correction, as bonus; with a branch hit behind it."""
    s = script()
    s.wrong(SEED + 5, risky=True, alt_right=True)
    at = SEED + place
    options = {}
    if way == "eos":
        s.truth[at] = EOS
        s.drafts[at] = Said(EOS) if place % 2 else Said(JUNK + 2, 0.2, EOS)
    elif way == "stop id":
        options["stop_ids"] = frozenset({s.truth[at]})
    else:
        options["stop"] = lambda token: token == s.truth[at]
        options["stop_ids"] = frozenset({s.truth[at]})
    r = Round(s, planner=planner_of(method, B), **options)
    assert r.done.finish == Finish.STOP
    assert len(r.done.tokens) == place + 1


class DraftedRounds:
    """Observer: rounds that verified a draft."""

    rounds = 0

    def on_rounds(self, view):
        self.rounds += int((view.outcome.width > 1).sum())


def test_every_outcome_is_counted_once_a_round():
    """Long random play: all outcomes occur, and they add up to the rounds."""
    rng = np.random.default_rng(1)
    counter = OutcomeCounter(DELTA, frozenset({EOS}))
    scripts = {str(i): random_script(rng, 140) for i in range(24)}
    engine = scripted_engine(scripts, [OverlapPlanner(6)], max_requests=6, context=140)
    drafted = DraftedRounds()
    engine.observers += [counter, drafted]
    for key, s in scripts.items():
        engine.submit(scripted_request(key, s, 120))
    done = {e.key: e.finished for e in engine.run() if e.finished}
    for key, s in scripts.items():
        assert done[key].tokens.tolist() == expected_output(s, 120, 140)
    counts = counts_of(counter)
    wanted = set(BranchOutcome) - {BranchOutcome.POSITION_REUSED}
    assert wanted <= {k for k, v in counts.items() if v}
    assert sum(counts.values()) == drafted.rounds
    reused = (BranchOutcome.CORRECTION_REUSED, BranchOutcome.CONTINUATION_REUSED)
    hits = sum(counts[k] for k in reused)
    assert sum(d.reused for d in done.values()) <= hits


def random_script(rng: np.random.Generator, length: int, eos: bool = False) -> Script:
    """Errors, risks, right and wrong alternatives, missing ones; perhaps an EOS somewhere."""
    s = Script.plain(int(rng.integers(1, 20)), length)
    for position in range(s.prompt, length):
        roll = rng.random()
        if roll < 0.1:
            s.wrong(position, risky=bool(rng.random() < 0.7), alt_right=bool(rng.random() < 0.6))
        elif roll < 0.25:
            s.risky(position)
        elif roll < 0.28:
            s.drafts[position] = Said(JUNK + 2, 0.1, -1)
    if eos and rng.random() < 0.7:
        at = int(rng.integers(s.prompt, length))
        s.truth[at] = EOS
        s.drafts[at] = Said(EOS, float(rng.choice([0.2, 1.0]))) if rng.random() < 0.5 else s.at(at)
    return s


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


def test_overlap_proposes_what_the_rule_allows_and_no_more():
    s = script()
    s.risky(SEED + 2)
    s.risky(SEED + 4)
    for corrections, continuation, want in (
        (0, True, 1),
        (1, True, 2),
        (2, False, 2),
        (0, False, 0),
    ):
        planner = OverlapPlanner(B, BranchRule(DELTA, corrections, continuation))
        assert Round(script_copy(s), planner=planner).branches == want


def script_copy(s: Script) -> Script:
    return Script(s.prompt, list(s.truth), dict(s.drafts))
