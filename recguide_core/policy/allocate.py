"""Eq. 3 for a whole batch: B* = argmax_B [V_B(s, z) - rho_C T_C(B)], ties to the smaller block.

Knows values and prices as arrays; not how either was estimated. One unit of price everywhere:
milliseconds that one request's round takes out of the batch, so that rho is tokens of one request
per millisecond and the bucketed price T_C(B) and the ragged one can be exchanged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recguide_core.policy.cost import MIXED, CostModel, Milliseconds, round_ms
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.value import Reals
from recguide_core.records import IntArray

TIE = 1e-12
"""A larger block must be better by more than this."""

PROBE_PERIOD = 16
"""A request on plain AR drafts again after this many rounds."""


def bucketed_prices(
    model: CostModel, concurrency: int, menu: IntArray, kv_per_request: float
) -> Milliseconds:
    """T_C(B): every request of a full bucket is charged the bucket's round, float64 [menu]."""
    return round_ms(model, concurrency, menu, kv_per_request)


def ragged_prices(
    prices: PackedPrices,
    requests: int,
    tokens: int,
    kv_tokens: int,
    menu: IntArray,
    forwards: Reals | None = None,
    extra: Reals | None = None,
) -> Milliseconds:
    """Price of each block where all requests share one packed forward, float64 [menu].

    A round takes part in `forwards` steps (2; plain AR 1; 2 - h with overlap). A step costs what
    this one costs, plus `requests` times dT of widening one row from the step's mean width to B:
    the batch is priced as if everybody took that block, along the tangent at the present shape.
    Where T is affine in tokens this is T_C(B) exactly.

    Args:
        requests, tokens, kv_tokens: size of the coming forward, as far as it is known.
        forwards: steps of a round with each block; extra: query tokens of a round beside its draft
            and verify rows (branches), [menu].
    """
    requests = max(requests, 1)
    if forwards is None:
        forwards = np.where(menu == 1, 1.0, 2.0)
    width = tokens / requests
    query = np.empty(len(menu) + 1)
    query[0] = tokens
    query[1:] = np.maximum(tokens + (menu - width), requests)
    ms = prices.ms(MIXED, requests, query, kv_tokens)
    added = query[1:] - tokens
    # A row of the mean width adds no token and needs no slope.
    slope = (ms[1:] - ms[0]) / np.where(added == 0, 1, added)
    price = forwards * np.maximum(ms[0] + requests * slope * (menu - width), 0.0)
    return np.asarray(price if extra is None else price + requests * slope * extra)


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
    if remaining is not None:
        values = np.minimum(values, remaining[:, None])
    score = values - (rho * prices + TIE * np.arange(values.shape[1]))
    return np.asarray(score.argmax(axis=1))


def probe(
    choice: IntArray,
    menu: IntArray,
    rounds: IntArray,
    period: int = PROBE_PERIOD,
) -> IntArray:
    """Let every `period`-th round of a request on plain AR draft the smallest block instead.

    One token says little about how far a draft would have gone, so without this a request could
    stay on AR after its hard stretch has ended.

    Args:
        choice: indices into `menu`, int64 [n].
        rounds: completed rounds of each request, int64 [n].
    """
    if len(menu) < 2 or menu[0] != 1:
        return choice
    due = (choice == 0) & (rounds % period == period - 1)
    return np.where(due, 1, choice)


def menu_cap(menu: IntArray, choice: IntArray, room: npt.NDArray[np.int64]) -> IntArray:
    """The chosen blocks, cut to the largest one of the menu that fits into `room`, int64 [n].

    A request without room for any block of the menu gets width 1.
    """
    fitting = np.searchsorted(menu, room, side="right") - 1
    return np.where(fitting < 0, 1, menu[np.minimum(choice, np.maximum(fitting, 0))])
