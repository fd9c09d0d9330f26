"""Does adapting blocks still pay where a step cannot be ragged? Pure numpy.

A padded step costs every request the widest block in the batch; a bucketed one runs each size as
its own smaller forward. Both are priced here from the cost table against the best fixed block,
with requests' states drawn independently from the calibration's own weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.engine.guidance import Guidance
from recguide_core.policy.allocate import bucketed_prices, choose
from recguide_core.policy.value import Reals

KV_PER_REQUEST = 512.0
"""Committed tokens assumed of each request; prices hardly move with it below a few thousand."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tokens per ms of the whole batch, both ways.

    Attributes:
        block: the best fixed block; fixed, adaptive: its rate and the adaptive one's.
    """

    block: int
    fixed: float
    adaptive: float

    @property
    def prefers_fixed(self) -> bool:
        return self.fixed >= self.adaptive


def judge_layout(guidance: Guidance, load: int, layout: str) -> Verdict:
    """Compare the best fixed block with adaptive blocks at C = `load` under a fallback layout.

    Args:
        layout: "uniform" (padded to the widest block) or "bucketed" (one size a forward).
    """
    menu = guidance.value.menu
    values, weight = _states(guidance)
    cost = bucketed_prices(guidance.cost, load, menu, KV_PER_REQUEST)
    mean = weight @ values
    rates = load * mean / cost
    best = int(rates.argmax())
    choice = choose(values, cost, guidance.rho_at(load))
    share: Reals = np.bincount(choice, weights=weight, minlength=len(menu)).astype(np.float64)
    taken = float(weight @ values[np.arange(len(values)), choice])
    if layout == "uniform":
        spent = float(_widest(share, load) @ cost)
    else:
        spent = _in_buckets(guidance, share, load)
    return Verdict(int(menu[best]), float(rates[best]), load * taken / spent)


def _states(guidance: Guidance) -> tuple[Reals, Reals]:
    """V_B of every calibrated state with a history, and the states' weights: [S, menu], [S]."""
    values, weights = [], []
    for stratum in guidance.value.strata:
        if stratum.lagged or stratum.prev_block <= 0:
            continue
        values.append(stratum.survival[:-1].sum(axis=2))
        weights.append(stratum.weight[:-1].sum(axis=1))
    if not values or not np.concatenate(weights).sum():
        pooled = next(s for s in guidance.value.strata if not s.lagged)
        return pooled.survival[-1:].sum(axis=2), np.ones(1)
    weight = np.concatenate(weights)
    return np.concatenate(values), weight / weight.sum()


def _widest(share: Reals, requests: int) -> Reals:
    """P(the widest of `requests` independent blocks is B), [menu]."""
    below = np.minimum(np.cumsum(share), 1.0) ** requests
    return np.diff(below, prepend=0.0)


def _in_buckets(guidance: Guidance, share: Reals, requests: int) -> float:
    """ms in which `requests` requests complete a round each, one block size a forward."""
    total = 0.0
    for block, part in zip(guidance.value.menu.tolist(), share.tolist(), strict=True):
        if part <= 0.0:
            continue
        occupied = 1.0 - (1.0 - part) ** requests
        size = max(1, round(requests * part / occupied))
        one = np.array([block])
        total += occupied * float(bucketed_prices(guidance.cost, size, one, KV_PER_REQUEST)[0])
    return total
