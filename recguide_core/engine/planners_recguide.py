"""All of RecGuide as one policy over the load range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.engine.guidance import Guidance
from recguide_core.engine.planners import place_branches, planned
from recguide_core.engine.planners_adaptive import AdaptivePlanner
from recguide_core.engine.turns import Turns
from recguide_core.policy.allocate import PROBE_PERIOD, choose, choose_lasting
from recguide_core.policy.branches import BRANCHES, propose
from recguide_core.policy.cost import MIXED
from recguide_core.policy.pricing import worthwhile
from recguide_core.policy.traffic import Traffic
from recguide_core.policy.value import Reals
from recguide_core.records import MAX_BLOCK, IntArray, Plan, RequestTable, Source

_DRAFTED = int(Source.DRAFT)
_SELDOM = 4
"""Times the usual period that requests on plain AR wait for a probe where AR leads anyway."""
_MOST = 1.5
"""Largest rho over the rate that was attained with it. Where most texts want plain AR, large ones
are as good as each other, and other texts pay for it."""


class RecGuidePlanner(AdaptivePlanner):
    """One policy over the whole load range: priced branches, adaptive blocks, AR as a choice.

    Overlap fades with load because a branch is kept only while P(hit) times the saved forward
    exceeds what its tokens cost; plain AR and B = 4 are in the menu; a request on AR still probes.

    With `learning`, rho, V and the preferred block follow the traffic (`policy.traffic`), and the
    tables are where that starts.

    Args:
        overlap, adaptive, priced, learning: parts that can be switched off (ablation).
    """

    name = "recguide"

    def __init__(
        self,
        guidance: Guidance,
        batching: str = "ragged",
        *,
        overlap: bool = True,
        adaptive: bool = True,
        priced: bool = True,
        learning: bool = True,
    ) -> None:
        super().__init__(guidance, batching, tuple(guidance.menu))
        self.overlap = overlap
        self.adaptive = adaptive
        self.priced = priced and guidance.branches is not None
        # What a bucketed step does is settled behind the plan, which learning would take for done.
        self.learning = learning and adaptive and not self.bucketed
        self.max_in_flight = MAX_BLOCK * (1 + BRANCHES)
        self._expected: dict[int, tuple[Reals, Reals | None]] = {}
        self._traffic: Traffic | None = None
        self._table: RequestTable | None = None
        self._lead: tuple[int, float] | None = None
        self._turns = Turns()
        self._terms: dict[int, tuple[float, float]] = {}
        self._pays: dict[int, bool] = {}
        self._one = np.ones(len(self.menu))
        self._best = choose_lasting if len(self.menu) > 1 and self.menu[0] == 1 else choose

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        self._turns.next_step()
        traffic = self._learn(table)
        plan = self._decide(table, who, load)
        if traffic is not None and self._turns.learns(len(who)):
            traffic.begin(plan, table, load, self._ms(plan, table))
        return plan

    def _decide(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        block, ready = table.draft_block.take(who), table.has_draft.take(who)
        shape = self._shape(table, who, block, ready)
        if self.adaptive:
            self._draw(table, who, load, block, ready, shape)
        else:
            asked = table.fixed_block.take(who)
            block = np.where(ready, block, np.where(asked > 0, asked, self.guidance.block))
        np.minimum(block, table.room.take(who), out=block)
        entry = ready.nonzero()[0]
        if not len(entry):
            return planned(who, block, ready)
        them = who.take(entry)
        # Nobody waits for more tokens than it may still emit.
        most = np.maximum(table.remaining.take(them), 1)
        due = _Due(them, np.minimum(block.take(entry), most))
        reused = (table.draft_source.take(them) != _DRAFTED).nonzero()[0]
        pays = self._branches_pay(load) and self._turns.looks(len(who), load)
        if self.adaptive and (pays or len(reused)):
            due.spans = self.spans(table, them)
            # These are drafted already: only the verify forward is still to pay.
            due.prices = self.ragged(*shape, self._one)
            self._shorten(table, due, reused, load)
        block[entry] = due.width
        plan = planned(who, block, ready)
        if pays:
            self._branch(plan, table, entry, due, load, shape[2])
        return plan

    # -- learning ---------------------------------------------------------------------------

    @property
    def scale(self) -> Reals:
        """What V of each block is multiplied by, float64 [menu]; 1 where nothing was learned."""
        return np.ones(len(self.menu)) if self._traffic is None else self._traffic.scale

    def _learn(self, table: RequestTable) -> Traffic | None:
        """The traffic so far, with the outcome of the last step in it; None where it is ignored."""
        if not self.learning:
            return None
        traffic = self._traffic
        if traffic is None or table is not self._table:
            typical = self.value.typical()
            traffic = Traffic(self.menu, typical, self.guidance.rate_at, len(table.rounds))
            self._traffic, self._table = traffic, table
        traffic.settle(table)
        return traffic

    def _ms(self, plan: Plan, table: RequestTable) -> float:
        """Price of the plan's forward, prompts aside."""
        tokens = int(np.add.reduce(plan.block)) + int(plan.branch_block.sum())
        kv = int(np.add.reduce(table.committed.take(plan.who)))
        return self.prices.of_few(MIXED, len(plan.who), (float(tokens),), kv)[0]

    def _rho(self, load: int) -> float:
        """rho_C of the tables, moved with the rate that the traffic attains.

        At or below its rate, rho is that share of it. Where tuning found more than the rate to be
        better (few texts worth a long block among many that are not), faster texts don't raise it
        further until their own rate has passed it; how much more is not believed beyond `_MOST`.
        """
        found = self._terms.get(load)
        if found is None:
            rate = self.guidance.rate_at(load)
            rho = min(self.guidance.rho_at(load), _MOST * rate)
            found = self._terms[load] = (rho, min(rho, rate))
        rho, below = found
        if self._traffic is None:
            return rho
        factor = self._traffic.factor(load)
        return max(rho * min(factor, 1.0), below * factor)

    def _choose(self, values: Reals, prices: Reals, load: int, remaining: IntArray) -> IntArray:
        rho, traffic = self._rho(load), self._traffic
        if traffic is not None:
            if self._lead is None or self._turns.learns(len(values)):
                self._lead = traffic.favour(values, prices, rho, load)
            values, prices = traffic.corrected(values, load), self._favoured(prices)
        return self._best(values, prices, rho, remaining)

    def _choose_again(self, values: Reals, prices: Reals, load: int) -> IntArray:
        """The same for drafts that exist, or that do not yet: nothing is learned from these."""
        if self._traffic is not None:
            values, prices = self._traffic.corrected(values, load), self._favoured(prices)
        return self._best(values, prices, self._rho(load))

    def _favoured(self, prices: Reals) -> Reals:
        if self._lead is None:
            return prices
        prices, (index, less) = prices.copy(), self._lead
        prices[index] -= less
        return prices

    def _probe_period(self) -> int:
        leads = self._lead is not None and self.menu[self._lead[0]] == 1
        return PROBE_PERIOD * (_SELDOM if leads else 1)

    def _chosen(self, slots: IntArray, values: Reals, block: IntArray) -> None:
        if self._traffic is not None:
            self._traffic.promise(slots, values, block)

    # -- prices -----------------------------------------------------------------------------

    def _forwards(self, load: int) -> tuple[Reals, Reals | None]:
        """2 - h forwards where branches are to be expected, whose tokens come on top."""
        found = self._expected.get(load)
        if found is None:
            forwards, extra = super()._forwards(load)
            if self.overlap and self.guidance.overlap:
                at = np.isin(self.guidance.value.menu, self.menu)
                reuse, rows = (column[at] for column in self.guidance.overlap_at(load))
                forwards = forwards - reuse
                extra = rows * self.menu if rows.any() else None
            found = self._expected[load] = (forwards, extra)
        return found

    def _shorten(self, table: RequestTable, due: _Due, reused: IntArray, load: int) -> None:
        """A reused block was sized before the last entropy existed; it may shrink, never grow."""
        if not len(reused):
            return
        assert due.spans is not None and due.prices is not None
        slots = due.who.take(reused)
        values = self.value.values_at(self.cells(table, slots, due.spans.take(reused)))
        choice = self._choose_again(values, due.prices, load)
        width = np.minimum(due.width.take(reused), np.maximum(self.menu.take(choice), 2))
        due.width[reused] = width
        self._chosen(slots, values, width)

    def _branches_pay(self, load: int) -> bool:
        """Whether any branch is to be expected at this load."""
        if not self.overlap:
            return False
        if not self.priced or not self.guidance.overlap:
            return True
        pays = self._pays.get(load)
        if pays is None:
            pays = self._pays[load] = self.guidance.expects_branches(load)
        return pays

    def _branch(
        self, plan: Plan, table: RequestTable, entry: IntArray, due: _Due, load: int, kv: int
    ) -> None:
        """Add the branches of the entries [m] that verify; `kv`: K/V tokens of the forward."""
        after_miss, after_full = self._next_blocks(table, due, load)
        proposal = propose(
            table.margin.take(due.who, axis=0),
            table.alt.take(due.who, axis=0),
            due.width,
            table.remaining.take(due.who),
            table.room.take(due.who),
            self.guidance.rule,
            correction_block=after_miss,
            continuation_block=after_full,
        )
        if self.priced:
            assert self.guidance.branches is not None
            proposal = worthwhile(
                proposal,
                due.width,
                self.guidance.branches,
                self.prices,
                len(plan.who),
                int(np.add.reduce(plan.block)),
                kv,
            )
        found = int(np.count_nonzero(proposal.used))
        self._turns.found(found, len(plan.who), load)
        if found:
            place_branches(plan, entry, proposal)

    def _next_blocks(self, table: RequestTable, due: _Due, load: int) -> tuple[IntArray, IntArray]:
        """B of the branches after a miss and after a full block, int64 [n] each.

        From the lagged table, since this round's entropy does not exist yet: s comes from
        e_(t-1), e_(t-2); z is the branch's own hypothesis (B_t, F_t).
        """
        n, asked = len(due.who), table.fixed_block.take(due.who)
        insists = asked > 0 if np.count_nonzero(asked) else None
        if due.prices is None or due.spans is None:
            fixed = np.full(n, self.guidance.block)
            same = fixed if insists is None else np.where(insists, due.width, fixed)
            return same, same
        cells = self.value.hypotheses(due.spans, due.width)
        values = self.value.values_at(cells)
        block = self.menu.take(self._choose_again(values, due.prices, load))
        after_miss, after_full = block[:n], block[n:]
        if insists is None:
            return after_miss, after_full
        return np.where(insists, due.width, after_miss), np.where(insists, due.width, after_full)


@dataclass(slots=True)
class _Due:
    """Requests whose draft is to be verified: slots and B, int64 [n]; what is known of them."""

    who: IntArray
    width: IntArray
    spans: IntArray | None = None
    prices: Reals | None = None
