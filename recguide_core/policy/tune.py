"""rho_C and the low-load setting: the searches behind `recguide tune`.

Knows values, prices and counts as arrays; runs no model. For fixed states, maximising pooled
sum(V) / sum(T) over block choices is a fractional programme: at its optimum rho the choices
argmax(V - rho T) reach exactly the ratio rho, and Dinkelbach's iteration gets there in a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.policy.allocate import choose
from recguide_core.policy.cost import DRAFT, FUSED, VERIFY, CostModel, Milliseconds, Shapes
from recguide_core.policy.value import Reals
from recguide_core.records import IntArray

_MOST_STEPS = 64


def forwards_per_round(reuse: float) -> float:
    """2 - h: a round whose draft came from a branch needs no draft forward."""
    return 2.0 - reuse


def tau(accepted: float, reuse: float) -> float:
    """Mean accepted tokens per two forwards, 2 A / (2 - h)."""
    return 2.0 * accepted / forwards_per_round(reuse)


def pooled_rate(
    accepted: Reals, prices: Milliseconds, choice: IntArray, weight: Reals | None = None
) -> float:
    """sum(A) / sum(T) of the chosen blocks, in tokens per ms of one request.

    Args:
        accepted: V or A of each block, float64 [n, menu].
        prices: T in ms, [menu] or [n, menu].
        choice: index of the chosen block, int64 [n].
        weight: of each round, float64 [n].
    """
    rows = np.arange(len(choice))
    w = np.ones(len(choice)) if weight is None else weight
    cost = np.broadcast_to(prices, accepted.shape)[rows, choice]
    return float(w @ accepted[rows, choice] / (w @ cost))


def dinkelbach(values: Reals, prices: Milliseconds, weight: Reals | None = None) -> float:
    """rho that maximises pooled sum(V) / sum(T) over all choices of blocks, tokens per ms.

    Each step chooses blocks at the present rho and takes their ratio as the next; rho rises until
    it repeats. Arguments as for `pooled_rate`.
    """
    rho, choice = 0.0, np.zeros(len(values), np.int64)
    for _ in range(_MOST_STEPS):
        choice = choose(values, prices, rho)
        higher = pooled_rate(values, prices, choice, weight)
        if higher <= rho * (1 + 1e-12):
            break
        rho = higher
    return rho


def crossings(values: Reals, prices: Milliseconds) -> Reals:
    """Every rho >= 0 at which some choice may change, ascending: (V_b - V_a) / (T_b - T_a)."""
    cost = np.broadcast_to(prices, values.shape)
    a, b = np.triu_indices(values.shape[1], 1)
    dv, dt = values[:, b] - values[:, a], cost[:, b] - cost[:, a]
    at = np.divide(dv, dt, out=np.full(dv.shape, -1.0), where=dt != 0)
    return np.unique(at[at >= 0])


@dataclass(frozen=True, slots=True)
class OverlapTrial:
    """What a fixed block with a fixed branch rule would do on recorded rounds.

    Attributes:
        block: B; delta, branches: the rule, `branches` = (corrections, continuation).
        accepted: mean A; reuse: h; rows: mean branch rows of a round.
    """

    block: int
    delta: float
    branches: tuple[int, bool]
    accepted: float
    reuse: float
    rows: float

    def ms(self, model: CostModel, requests: int, kv_per_request: float) -> float:
        """Time of one round at `requests` concurrent requests: a fused verify and, unless the
        draft was reused, a draft forward."""
        kv = int(requests * kv_per_request)
        verify = round(requests * self.block * (1 + self.rows))
        branches = round(requests * self.rows)
        kinds = np.array([FUSED if branches else VERIFY, DRAFT])
        shapes = Shapes(
            kind=kinds,
            requests=np.full(2, requests),
            query_tokens=np.array([verify, requests * self.block]),
            kv_tokens=np.full(2, kv),
            block_size=np.full(2, self.block),
            branches=np.array([branches, 0]),
        )
        verify_ms, draft_ms = model.ms(shapes)
        return float(verify_ms + (1.0 - self.reuse) * draft_ms)

    def rate(self, model: CostModel, requests: int, kv_per_request: float) -> float:
        """Tokens of one request per ms."""
        return self.accepted / self.ms(model, requests, kv_per_request)


def best_trial(
    trials: Sequence[OverlapTrial], model: CostModel, requests: int, kv_per_request: float
) -> OverlapTrial:
    """The fastest combination of block, delta and branches; ties to the earlier one."""
    rates = [t.rate(model, requests, kv_per_request) for t in trials]
    return trials[int(np.argmax(rates))]


def bootstrap_gain(
    ours: npt.NDArray[np.float64],
    theirs: npt.NDArray[np.float64],
    samples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float, float]:
    """Relative gain of pooled rates and its bootstrap interval over prompts.

    Args:
        ours, theirs: (tokens, ms) of each prompt under either policy, float64 [prompts, 2].

    Returns:
        gain, low, high; 0.1 means ten percent more tokens per ms.
    """
    if not len(ours):
        return float("nan"), float("nan"), float("nan")
    draw = np.random.default_rng(seed).integers(0, len(ours), (samples, len(ours)))

    def ratio(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(sums[..., 0] / sums[..., 1])

    gains = ratio(ours[draw].sum(1)) / ratio(theirs[draw].sum(1)) - 1.0
    low, high = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2])
    gain = ratio(ours.sum(0)) / ratio(theirs.sum(0)) - 1.0
    return float(gain), float(low), float(high)
