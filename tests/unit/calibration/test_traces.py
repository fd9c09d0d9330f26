"""From trace rows to states and trials, on rows whose truth is known."""

import numpy as np
import pytest
from shadow_rows import MENU, columns, request_rows, row

from recguide_core.calibration.traces import (
    branch_trials,
    drafted_rows,
    overlap_trial,
    state_weights,
    states_of,
)
from recguide_core.errors import DataError
from recguide_core.policy.branches import BranchRule
from recguide_core.records import BranchKind

ROWS = request_rows("a", [2, 9, 0, 5], [4, 8, 8, 1]) + request_rows("b", [3, 3], [8, 4])


def test_states_carry_history_of_the_committed_blocks() -> None:
    states = states_of(columns(ROWS))
    rounds = states.rounds
    assert states.menu.tolist() == list(MENU)
    assert len(states) == 6
    assert rounds.prev_block.tolist() == [0, 4, 8, 8, 0, 8]
    # Round 0 of "a" matched 2 of 3 drafts, round 1 all 7 of them, round 2 none.
    assert rounds.prev_full.tolist() == [False, False, True, False, False, False]
    nan = np.nan
    expected = ([nan, 0.1, 0.2, 0.3, nan, 0.1], [nan, nan, 0.1, 0.2, nan, nan])
    np.testing.assert_allclose(rounds.e1, expected[0], rtol=1e-6)
    np.testing.assert_allclose(rounds.e2, expected[1], rtol=1e-6)
    assert rounds.accepted.tolist()[:3] == [[1, 3, 3], [1, 4, 8], [1, 1, 1]]


def test_order_of_rows_does_not_matter() -> None:
    shuffled = [ROWS[i] for i in np.random.default_rng(0).permutation(len(ROWS))]
    a, b = states_of(columns(ROWS)), states_of(columns(shuffled))
    assert (a.rounds.accepted == b.rounds.accepted).all()
    assert (a.rounds.prev_block == b.rounds.prev_block).all()


def test_rounds_that_meet_eos_in_any_block_are_left_out_but_stay_history() -> None:
    rows = [{**r, "eos": r["request"] == "a" and r["round"] == 1} for r in ROWS]
    rounds = states_of(columns(rows)).rounds
    assert len(rounds) == 5
    assert rounds.prev_block.tolist() == [0, 8, 8, 0, 8]


def test_incomplete_rounds_are_left_out() -> None:
    rows = [r for r in ROWS if (r["request"], r["round"], r["block_size"]) != ("b", 0, 4)]
    assert len(states_of(columns(rows))) == 5


def test_gaps_and_emptiness_are_refused() -> None:
    with pytest.raises(DataError, match="skips rounds"):
        states_of(columns([r for r in ROWS if (r["request"], r["round"]) != ("a", 1)]))
    with pytest.raises(DataError, match="no complete round"):
        states_of(columns([row("a", 0, 4, False, 2)]))
    with pytest.raises(DataError, match="ends at EOS"):
        states_of(columns([{**r, "eos": True} for r in ROWS]))


def test_entropy_positions_cut_the_mean() -> None:
    rows = request_rows("a", [7, 7], [8, 8])
    for r in rows:
        if r["block_size"] == 8:
            r["entropy"] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert states_of(columns(rows)).rounds.e1[1] == pytest.approx(4.0)
    assert states_of(columns(rows), positions=3).rounds.e1[1] == pytest.approx(2.0)


def test_corrections_hit_where_the_risky_token_is_the_right_one() -> None:
    trials = branch_trials(columns(ROWS), states_of(columns(ROWS)), 0.5)
    correction = trials.kind == BranchKind.CORRECTION
    # Every rejected draft is risky exactly there, and its alternative is the verdict.
    assert trials.hit[correction].all()
    follow = ~correction
    # Continuations count behind the committed block only: rounds with B = 4 or 8 committed.
    assert follow.sum() == 5
    assert trials.hit[follow].sum() == 1 + 1  # "a" round 1 (B = 8) and "b" round 1 (B = 4)


def test_wrong_alternatives_miss() -> None:
    rows = [{**r, "top2": [3] * len(r["top2"])} for r in ROWS]
    trials = branch_trials(columns(rows), states_of(columns(rows)), 0.5)
    assert not trials.hit[trials.kind == BranchKind.CORRECTION].any()


def test_reuse_of_a_fixed_block_adds_up() -> None:
    table = columns(ROWS)
    states = states_of(table)
    rows, weight = drafted_rows(table, states, 4), state_weights(states)
    full = weight @ (rows.reject < 0)
    both = overlap_trial(rows, BranchRule(), weight)
    assert both.reuse == pytest.approx(1.0)  # every miss is corrected, every full block followed
    assert both.accepted == pytest.approx(weight @ np.array([3, 4, 1, 4, 4, 4]))
    corrections = overlap_trial(rows, BranchRule(continuation=False), weight)
    assert corrections.reuse == pytest.approx(1.0 - full)
    none = overlap_trial(rows, BranchRule(corrections=0, continuation=False), weight)
    assert none.reuse == 0
    assert none.rows == 0
