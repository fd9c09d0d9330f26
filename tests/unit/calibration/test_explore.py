"""The exploration chain: its shares, its first block, and that it can be repeated."""

from collections import Counter

import pytest

from recguide_core.calibration.explore import check_menu, draw, next_block

PAPER = (8, 16, 32)


def shares(menu: tuple[int, ...], previous: int) -> dict[int, float]:
    steps = 2000
    found = Counter(next_block(menu, previous, (i + 0.5) / steps) for i in range(steps))
    return {block: found[block] / steps for block in menu}


def test_shares_of_the_published_chain() -> None:
    assert shares(PAPER, 8) == pytest.approx({8: 0.55, 16: 0.35, 32: 0.10}, abs=1e-3)
    assert shares(PAPER, 16) == pytest.approx({8: 0.25, 16: 0.50, 32: 0.25}, abs=1e-3)
    assert shares(PAPER, 32) == pytest.approx({8: 0.10, 16: 0.35, 32: 0.55}, abs=1e-3)


def test_longer_menus_reach_every_block() -> None:
    menu = (1, 4, 8, 16, 32)
    assert shares(menu, 4)[1] == pytest.approx(0.25, abs=1e-3)
    seen, block = set(), 0
    for i in range(400):
        block = next_block(menu, block, draw(0, "prompt", i))
        seen.add(block)
    assert seen == set(menu)


def test_first_round_takes_sixteen_or_the_nearest() -> None:
    assert next_block(PAPER, 0, 0.9) == 16
    assert next_block((1, 4), 0, 0.9) == 4


def test_draws_repeat_and_differ_by_seed_request_and_round() -> None:
    assert draw(0, "a", 3) == draw(0, "a", 3)
    others = {draw(0, "a", 3), draw(1, "a", 3), draw(0, "b", 3), draw(0, "a", 4)}
    assert len(others) == 4
    assert all(0 <= u < 1 for u in others)


@pytest.mark.parametrize("menu", [(), (1,), (8, 4), (4, 4), (0, 8), (8, 64)])
def test_impossible_menus_are_named(menu: tuple[int, ...]) -> None:
    assert check_menu(menu) is not None


def test_possible_menus_pass() -> None:
    assert check_menu((1, 4, 8, 16, 32)) is None
