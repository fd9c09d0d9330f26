"""The exploration chain: which block of the menu a calibration round commits.

A policy changes its own history, so tables need rounds behind every block size, at random, and
the same ones again when a run resumes: the draw is a hash of (seed, request, round).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from recguide_core.records import MAX_BLOCK

MENU = (1, 4, 8, 16, 32)
"""Block sizes that calibrate tries; 1 is plain AR."""
FIRST = 16

_LOWEST = (0.55, 0.35, 0.10)
_MIDDLE = (0.25, 0.50, 0.25)


def draw(seed: int, request: str, round_: int) -> float:
    """A uniform number in [0, 1) that belongs to one round."""
    digest = hashlib.sha256(f"{seed}|{request}|{round_}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


def next_block(menu: Sequence[int], previous: int, u: float) -> int:
    """The block that follows `previous` (0 = none yet) for a uniform draw `u`.

    Inner blocks stay with 50 % and move one step with 25 % each; the smallest goes 55/35/10 % to
    itself, one and two steps up, the largest likewise down. The first round takes 16.
    """
    if previous == 0:
        return min(menu, key=lambda b: (abs(b - FIRST), b))
    i, last = menu.index(previous), len(menu) - 1
    if i == 0:
        steps, shares = (0, 1, 2), _LOWEST
    elif i == last:
        steps, shares = (0, -1, -2), _LOWEST
    else:
        steps, shares = (-1, 0, 1), _MIDDLE
    for step, share in zip(steps, shares, strict=True):
        if u < share:
            return menu[min(max(i + step, 0), last)]
        u -= share
    return menu[min(max(i + steps[-1], 0), last)]


def check_menu(menu: Sequence[int]) -> str | None:
    """What is wrong with a menu, or None."""
    if sorted(set(menu)) != list(menu):
        return "its blocks must ascend without doubles"
    if not menu or menu[0] < 1 or menu[-1] > MAX_BLOCK:
        return f"its blocks must lie in 1..{MAX_BLOCK}"
    if menu[-1] < 2:
        return "it drafts nothing"
    return None
