"""What the requests at hand say beside the tables: rho, V and the block that suits most of them.

Tables are fitted to the texts of a calibration. On other texts rho, the worth of a millisecond, is
another; V is too high where it was chosen for being high; and small differences between blocks
are noise. Three corrections, each from rounds that have been settled, none of them slower than a
few dozen rounds:

- *rate*: at its optimum rho is the rate that a request attains (Dinkelbach), so rho follows it;
- *scale*: accepted tokens over promised ones, for each block of the menu;
- *trust*: how far V tells rounds of one block apart (`policy.trust`); as far as it does not, it is
  drawn to its mean, and the block that is best on average gets a head start.

Knows slots, menu indices and tokens; not why a block was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from recguide_core.policy.cost import Milliseconds
from recguide_core.policy.trust import Trust
from recguide_core.policy.value import Reals
from recguide_core.records import MAX_BLOCK, Act, BoolArray, IntArray, Plan, RequestTable

_PRIOR_ROUNDS = 2.0
"""Rounds of a block that the table's V counts for against what was seen."""
_PRIOR_STEPS = 32.0
"""Steps that the tuned rate counts for: in the first one everybody drafts, nothing is emitted."""
_ROUND = 0.997
"""What a settled round leaves of the weight of those before it, in `scale`."""
_STEP = 0.98
"""The same of a step in `rate`, and of a draft in `lead`."""
HEAD_START, DOUBT = 0.1, 0.3
"""Of its V by which the leading block is preferred: always, as small differences are noise, and on
top of it where V says nothing about a round."""


@dataclass(slots=True)
class _Load:
    """What was seen near one concurrency.

    Attributes:
        tokens: accepted; `expected`: what the tuned rate would have given in the same time.
        values: decayed sum of V over drafts, float64 [menu]; `drafts`: their weight.
    """

    tokens: float
    expected: float
    values: Reals
    drafts: float = 0.0


@dataclass(slots=True)
class _Step:
    """A plan whose outcome is not known yet; rounds, committed and remaining tokens, int64 [n].

    `drafted`: who had a draft before it, bool [n]; `expected`: tokens that the tuned rate gives in
    its time.
    """

    plan: Plan
    rounds: IntArray
    committed: IntArray
    remaining: IntArray
    drafted: BoolArray
    expected: float
    seen: _Load


class Traffic:
    """Corrections of rho and V by what was accepted.

    Args:
        menu: blocks, ascending, int64 [menu]; typical: V of each without history, float64 [menu].
        rate_at: load -> tokens of one request per ms that are expected, the tuned rate.
        slots: size of the request table.

    Attributes:
        scale: factor on V of each block, float64 [menu]; 1 for plain AR, whose V is certain.
        trust: how far V tells rounds apart.
    """

    def __init__(
        self, menu: IntArray, typical: Reals, rate_at: Callable[[int], float], slots: int
    ) -> None:
        self.menu = menu
        self.rate_at = rate_at
        self.scale: Reals = np.ones(len(menu))
        self.trust = Trust(len(menu))
        self._prior = _PRIOR_ROUNDS * typical
        self._sums = np.zeros((2, len(menu)))
        self._loads: dict[int, _Load] = {}
        self._rates: dict[int, float] = {}
        self._index = np.full(slots, -1)
        self._promised = np.zeros(slots)
        # Plain AR promises its one token and keeps it.
        self._index_of = np.full(MAX_BLOCK + 1, -1)
        self._index_of[menu] = np.where(menu > 1, np.arange(len(menu)), -1)
        self._step: _Step | None = None

    def factor(self, load: int) -> float:
        """Attained over expected rate of a request near this load."""
        seen = self._seen(load)
        return seen.tokens / seen.expected if seen.expected else 1.0

    def promise(self, slots: IntArray, values: Reals, block: IntArray) -> None:
        """Requests whose draft is settled: V of every block, float64 [n, menu], and their B [n].

        A block off the menu (cut by the context) was promised nothing.
        """
        index = self._index_of.take(block)
        self._index[slots] = index
        self._promised[slots] = values[np.arange(len(index)), index]

    def corrected(self, values: Reals, load: int) -> Reals:
        """V of the tables by what was seen, float64 [n, menu]."""
        values, slope, mean = values * self.scale, self.trust.slope, self._mean(self._seen(load))
        return (
            values if slope == 1.0 or mean is None else np.asarray(mean + slope * (values - mean))
        )

    def favour(
        self, values: Reals, prices: Milliseconds, rho: float, load: int
    ) -> tuple[int, float]:
        """Index of the leading block, and the milliseconds by which its price is lowered.

        Args:
            values: V of the tables for the requests that draft, float64 [n, menu]; prices: T of
                each block, [menu].
        """
        seen, kept = self._seen(load), _STEP ** len(values)
        seen.values = seen.values * kept + values.sum(axis=0)
        seen.drafts = seen.drafts * kept + len(values)
        mean = self._mean(seen)
        assert mean is not None, "somebody drafts"
        lead = int((mean / np.maximum(prices, 1e-9)).argmax())
        start = HEAD_START + DOUBT * (1.0 - self.trust.slope)
        return lead, start * float(mean[lead]) / max(rho, 1e-9)

    def _mean(self, seen: _Load) -> Reals | None:
        """Mean V of the drafts near a load, scaled, float64 [menu]; None before the first."""
        return self.scale * seen.values / seen.drafts if seen.drafts else None

    def begin(self, plan: Plan, table: RequestTable, load: int, ms: float) -> None:
        """A plan of this price goes to the engine."""
        expected = self._rate(load) * ms * len(plan.who)
        who, seen = plan.who, self._seen(load)
        if not seen.expected:
            # Of the load, not of those who got through their prompts first.
            full = expected * max(load / max(len(plan.who), 1), 1.0)
            seen.tokens = seen.expected = _PRIOR_STEPS * full
        rounds, committed = table.rounds.take(who), table.committed.take(who)
        remaining, drafted = table.remaining.take(who), table.has_draft.take(who)
        self._step = _Step(plan, rounds, committed, remaining, drafted, expected, seen)

    def settle(self, table: RequestTable) -> None:
        """Learn from the step that `begin` announced; entries that verified nothing are no news."""
        step, self._step = self._step, None
        if step is None:
            return
        who, seen = step.plan.who, step.seen
        moved = table.rounds.take(who) - step.rounds
        grown = table.committed.take(who) - step.committed
        # A prefix grows by rounds only: without one, the slot has been given back.
        gone = (moved < 0) | ((moved == 0) & (grown != 0))
        left = np.count_nonzero(gone)
        drawn = table.has_draft.take(who) != step.drafted
        if not (left or np.count_nonzero(moved) or np.count_nonzero(drawn)):
            return  # The plan was not carried out; another takes its place.
        seen.tokens *= _STEP
        seen.expected = seen.expected * _STEP + step.expected
        if left:
            self._credit(gone & (step.plan.act == Act.VERIFY), step)
        # Where a slot has changed hands since, its numbers are no outcome of this plan.
        verified = ((moved == 1) & (grown > 0) & (grown <= step.plan.block)).nonzero()[0]
        if not len(verified):
            return
        who, block = who.take(verified), step.plan.block.take(verified)
        accepted = grown.take(verified)
        seen.tokens += float(np.add.reduce(accepted))
        index = self._index_of.take(block)
        # A block that was cut to the budget since is another one.
        known = ((index >= 0) & (index == self._index.take(who))).nonzero()[0]
        if not len(known):
            return
        at, m = index.take(known), len(self.menu)
        promised, got = self._promised.take(who.take(known)), accepted.take(known)
        self._sums *= _ROUND ** len(known)
        self._sums[0] += np.bincount(at, got, m)
        self._sums[1] += np.bincount(at, promised, m)
        self.scale = (self._prior + self._sums[0]) / (self._prior + self._sums[1])
        self.trust.add(at, promised, got, self.scale)

    def _credit(self, ended: BoolArray, step: _Step) -> None:
        """Requests whose round was their last left no count: they got what they were promised, as
        far as they could still emit it."""
        most = np.minimum(step.plan.block[ended], step.remaining[ended])
        hoped = np.maximum(self._promised.take(step.plan.who[ended]), 1.0)
        step.seen.tokens += float(np.minimum(hoped, most).sum())

    def _rate(self, load: int) -> float:
        rate = self._rates.get(load)
        if rate is None:
            rate = self._rates[load] = max(self.rate_at(load), 1e-9)
        return rate

    def _seen(self, load: int) -> _Load:
        """Loads within a factor of two share what they saw."""
        near = load.bit_length()
        seen = self._loads.get(near)
        if seen is None:
            seen = self._loads[near] = _Load(0.0, 0.0, np.zeros(len(self.menu)))
        return seen
