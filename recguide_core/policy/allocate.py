"""Eq. 3 for a whole batch: B* = argmax_B [V_B(s, z) - rho_C T_C(B)], ties to the smaller block.

Knows values and prices as arrays; not how either was estimated. One unit of price everywhere:
milliseconds that one request's round takes out of the batch, so that rho is tokens of one request
per millisecond and the bucketed price T_C(B) and the ragged one can be exchanged.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from recguide_core.policy.cost import CostModel, Milliseconds, round_ms
from recguide_core.policy.value import Reals
from recguide_core.records import MAX_BLOCK, IntArray

TIE = 1e-12
"""A larger block must be better by more than this."""

_HANDICAP = TIE * np.arange(MAX_BLOCK + 1)
PROBE_PERIOD = 16
"""A request on plain AR drafts again after this many rounds."""
_STRIDE = 5
"""Rounds from one slot's probe to the next one's; prime to every period."""


def bucketed_prices(
    model: CostModel, concurrency: int, menu: IntArray, kv_per_request: float
) -> Milliseconds:
    """T_C(B): every request of a full bucket is charged the bucket's round, float64 [menu]."""
    return round_ms(model, concurrency, menu, kv_per_request)


def choose(
    values: Reals,
    prices: Milliseconds,
    rho: float,
    remaining: IntArray | None = None,
) -> IntArray:
    """Index into the menu of each request's next block, int64 [n].

    Args:
        values: V_B, float64 [n, menu]; blocks ascend.
        prices: T of each block in ms, [menu] or [n, menu].
        rho: tokens per ms that a round must be worth.
        remaining: tokens that each request may still emit; more than these are worth nothing.
    """
    return np.asarray(_scores(_cut(values, remaining), prices, rho).argmax(axis=1))


def choose_lasting(
    values: Reals,
    prices: Milliseconds,
    rho: float,
    remaining: IntArray | None = None,
) -> IntArray:
    """`choose`, where plain AR is weighed by how long it would last; the menu starts with B = 1.

    Eq. 3 compares one round of each block as if states came as they come. A stretch of a text lasts
    until its tokens are through: plain AR needs V_B rounds for what the best draft gets in one, if
    the state stays, and one if it does not. Its score counts for the geometric mean of the two.
    Neither lasts longer than the request.

    Args:
        values, prices, rho, remaining: see `choose`.
    """
    values = _cut(values, remaining)
    scores = _scores(values, prices, rho)
    best = scores[:, 1:].argmax(axis=1)
    best += _second(*values.shape)
    scores[:, 0] *= np.sqrt(np.maximum(values.ravel().take(best), 1.0))
    return np.asarray(scores.argmax(axis=1))


@functools.lru_cache(maxsize=256)
def _second(n: int, m: int) -> IntArray:
    """Where the second column of each row of [n, m] lies, int64 [n]."""
    return np.arange(1, n * m, m)


def _cut(values: Reals, remaining: IntArray | None) -> Reals:
    """V of each block, at most what each request may still emit, float64 [n, menu]."""
    if remaining is None:
        return values
    n, m = values.shape
    # Flat, because numpy pays for every short row of a broadcast.
    return np.minimum(values.ravel(), remaining.repeat(m)).reshape(n, m)


def _scores(values: Reals, prices: Milliseconds, rho: float) -> Reals:
    """V - rho T of each block, float64 [n, menu]; ties are broken towards the smaller block."""
    return np.asarray(values - (rho * prices + _HANDICAP[: values.shape[1]]))


def probe(
    choice: IntArray,
    menu: IntArray,
    rounds: IntArray,
    slots: IntArray,
    period: int = PROBE_PERIOD,
) -> IntArray:
    """Let every `period`-th round of a request on plain AR draft the smallest block instead.

    One token says little about how far a draft would have gone, so without this a request could
    stay on AR after its hard stretch has ended. Requests that came together take turns: some probe
    at once, and no step is full of probes.

    Args:
        choice: indices into `menu`, int64 [n].
        rounds: completed rounds of each request; slots: theirs; int64 [n].
    """
    if len(menu) < 2 or menu[0] != 1:
        return choice
    due = (choice == 0) & ((rounds + _STRIDE * slots) % period == period - 1)
    return np.asarray(choice + due)


def menu_cap(menu: IntArray, choice: IntArray, room: npt.NDArray[np.int64]) -> IntArray:
    """The chosen blocks, cut to the largest one of the menu that fits into `room`, int64 [n].

    A request without room for any block of the menu gets width 1.
    """
    wanted = menu.take(choice)
    if len(room) and room.min() >= menu[-1]:
        return wanted
    fitting = np.searchsorted(menu, room, side="right") - 1
    return np.where(fitting < 0, 1, menu[np.minimum(choice, np.maximum(fitting, 0))])
