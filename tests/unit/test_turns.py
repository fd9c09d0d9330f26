"""What a planner does in some steps only."""

import pytest

from recguide_core.engine.turns import Turns


def steps(requests: int, count: int, ask) -> list[int]:
    """Steps in which `ask` says yes."""
    turns, due = Turns(), []
    for step in range(1, count + 1):
        turns.next_step()
        if ask(turns, step):
            due.append(step)
    return due


@pytest.mark.parametrize(("requests", "period"), [(1, 1), (7, 1), (8, 3), (47, 3), (128, 9)])
def test_learning_has_its_turn_and_every_first_step(requests, period):
    due = steps(requests, 300, lambda turns, step: turns.learns(requests))
    assert due[:128] == list(range(1, 129))
    assert due[128:] == [s for s in range(129, 301) if s % period == 0]


def test_nobody_teaches_nothing():
    assert steps(0, 20, lambda turns, step: turns.learns(0)) == []


@pytest.mark.parametrize(("requests", "period"), [(1, 1), (47, 1), (48, 3), (128, 9)])
def test_crowds_look_for_branches_in_turns(requests, period):
    def ask(turns, step):
        turns.found(requests, requests, requests)
        return turns.looks(requests, requests)

    assert steps(requests, 60, ask) == [s for s in range(1, 61) if s % period == 0]


def test_several_requests_without_branches_look_seldom_until_one_pays():
    def ask(turns, step):
        looked = turns.looks(8, 8)
        if looked:
            turns.found(1 if step == 40 else 0, 8, 8)
        return looked

    due = steps(8, 60, ask)
    assert due[:8] == list(range(1, 9))
    assert due[8:] == [*range(10, 41, 5), *range(41, 49), 50, 55, 60]


def test_few_requests_always_look_and_loads_do_not_share():
    def ask(turns, step):
        turns.found(0, 2, 2)
        turns.found(0, 8, 8)
        return turns.looks(2, 2) and turns.looks(8, 4)

    assert len(steps(2, 40, ask)) == 40
