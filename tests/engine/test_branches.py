"""Every outcome of a prospective branch, made to happen by a script."""

import numpy as np
import pytest
from harness import planner_of
from scripted import (
    EOS,
    JUNK,
    Said,
    Script,
    expected_output,
    random_script,
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
