"""Methods that choose each request's next block: adaptive drafting and all of RecGuide."""

from __future__ import annotations

import numpy as np

from recguide_core.engine.guidance import PAPER_MENU, Guidance
from recguide_core.engine.planners import draft_or_verify
from recguide_core.policy.allocate import (
    bucketed_prices,
    choose,
    menu_cap,
    probe,
    ragged_prices,
)
from recguide_core.policy.branches import BRANCHES, propose
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.pricing import worthwhile
from recguide_core.policy.signals import certainty
from recguide_core.policy.value import Reals
from recguide_core.records import MAX_BLOCK, Act, BoolArray, IntArray, Plan, RequestTable


class AdaptivePlanner:
    """Verification guided adaptive drafting (Sec. 5.2): argmax_B V_B(s, z) - rho_C T_C(B).

    Args:
        guidance: tables and rho; batching: "ragged" prices blocks at the margin of one packed
            forward, "bucketed" at T_C(B) of a full bucket.
        menu: block sizes, the paper's by default.
        ignore_outcome: leave z_t out (ablation: s_t alone).
    """

    name = "adaptive"
    block_size: int | None = None
    first_draft = 0

    def __init__(
        self,
        guidance: Guidance,
        batching: str = "ragged",
        menu: tuple[int, ...] = PAPER_MENU,
        *,
        ignore_outcome: bool = False,
    ) -> None:
        known = set(guidance.value.menu.tolist())
        self.value = guidance.value.restricted([b for b in menu if b in known])
        self.menu: IntArray = self.value.menu
        self.guidance = guidance
        self.bucketed = batching == "bucketed"
        self.ignore_outcome = ignore_outcome
        self.prices = PackedPrices(guidance.cost)
        self.max_in_flight = int(self.menu[-1])
        self._width = float(self.menu[len(self.menu) // 2])

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        plan = Plan.empty(who)
        draft_or_verify(plan, table, self.blocks(table, who, load))
        return plan

    def values(self, table: RequestTable, who: IntArray) -> Reals:
        """V_B of each request for its next round, float64 [n, menu]."""
        s = certainty(table.e1[who], table.e2[who])
        previous = table.prev_block[who]
        if self.ignore_outcome:
            # Pooled strata (-1) wherever there is a history at all.
            previous = np.where(previous > 0, -1, previous)
        return self.value.values(s, previous, table.prev_full[who])

    def blocks(self, table: RequestTable, who: IntArray, load: int) -> IntArray:
        """The block that each request should draft next, int64 [n] (Eq. 3)."""
        if not len(who):
            return np.zeros(0, np.int64)
        rho = self.guidance.rho_at(load)
        remaining = table.remaining[who]
        choice = choose(self.values(table, who), self._prices(table, who, load), rho, remaining)
        choice = probe(choice, self.menu, table.rounds[who])
        block = menu_cap(self.menu, choice, table.room[who])
        asked = table.fixed_block[who]
        block = np.where(asked > 0, asked, block)
        self._width = float(block.mean())
        return block

    def _prices(self, table: RequestTable, who: IntArray, load: int) -> np.ndarray:
        kv = int(table.committed[who].sum())
        if self.bucketed:
            return bucketed_prices(self.guidance.cost, load, self.menu, kv / len(who))
        ready = table.has_draft[who]
        fresh = len(who) - int(ready.sum())
        tokens = int(table.draft_block[who][ready].sum()) + round(self._width * fresh)
        forwards, extra = self._forwards(load)
        return ragged_prices(self.prices, len(who), tokens, kv, self.menu, forwards, extra)

    def _forwards(self, load: int) -> tuple[Reals, Reals]:
        """Forwards of a round with each block, and its query tokens beside draft and verify."""
        del load
        return np.where(self.menu == 1, 1.0, 2.0), np.zeros(len(self.menu))


class RecGuidePlanner(AdaptivePlanner):
    """One policy over the whole load range: priced branches, adaptive blocks, AR as a choice.

    Overlap fades with load because a branch is kept only while P(hit) times the saved forward
    exceeds what its tokens cost; plain AR and B = 4 are in the menu; a request on AR still probes.

    Args:
        overlap, adaptive, priced: parts that can be switched off (ablation).
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
    ) -> None:
        super().__init__(guidance, batching, tuple(guidance.menu))
        self.overlap = overlap
        self.adaptive = adaptive
        self.priced = priced and guidance.branches is not None
        self.max_in_flight = MAX_BLOCK * (1 + BRANCHES)
        self._expected: dict[int, tuple[Reals, Reals]] = {}

    def blocks(self, table: RequestTable, who: IntArray, load: int) -> IntArray:
        fixed = self._fixed(load)
        if not fixed:
            return super().blocks(table, who, load)
        asked = table.fixed_block[who]
        return np.where(asked > 0, asked, fixed)

    def _fixed(self, load: int) -> int:
        """The block for all: pinned by tuning at this load, or adaptive drafting is off; else 0."""
        return self.guidance.pin_at(load) if self.adaptive else self.guidance.block

    def _forwards(self, load: int) -> tuple[Reals, Reals]:
        """2 - h forwards where branches are to be expected, whose tokens come on top."""
        forwards, extra = super()._forwards(load)
        if not self.overlap or not self.guidance.overlap:
            return forwards, extra
        found = self._expected.get(load)
        if found is None:
            at = np.isin(self.guidance.value.menu, self.menu)
            reuse, rows = (column[at] for column in self.guidance.overlap_at(load))
            found = self._expected[load] = (forwards - reuse, rows * self.menu)
        return found

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        plan = Plan.empty(who, BRANCHES)
        draft_or_verify(plan, table, self.blocks(table, who, load))
        self._shorten(plan, table, load)
        if self.overlap:
            self._branch(plan, table, load)
        return plan

    def _shorten(self, plan: Plan, table: RequestTable, load: int) -> None:
        """A reused block was sized before the last entropy existed; it may shrink, never grow."""
        who = plan.who
        ready = np.flatnonzero(table.has_draft[who] & (plan.act == Act.VERIFY))
        if self._fixed(load) or not len(ready):
            return
        plan.block[ready] = np.minimum(
            np.minimum(plan.block[ready], table.remaining[who[ready]]),
            np.maximum(self._keep_up_to(table, who[ready], load), 1),
        )

    def _keep_up_to(self, table: RequestTable, who: IntArray, load: int) -> IntArray:
        """Largest useful width of a prepared draft: only the verify forward is still to pay."""
        fresh = table.draft_source[who] == 1
        prices = self._verify_prices(table, who)
        choice = choose(self.values(table, who), prices, self.guidance.rho_at(load))
        return np.where(fresh, MAX_BLOCK, np.maximum(self.menu[choice], 2))

    def _verify_prices(self, table: RequestTable, who: IntArray) -> np.ndarray:
        tokens = int(table.draft_block[who].sum())
        kv = int(table.committed[who].sum())
        one = np.ones(len(self.menu))
        return ragged_prices(self.prices, len(who), tokens, kv, self.menu, one)

    def _branch(self, plan: Plan, table: RequestTable, load: int) -> None:
        entry = np.flatnonzero((plan.act == Act.VERIFY) & table.has_draft[plan.who])
        if not len(entry):
            return
        who, width = plan.who[entry], plan.block[entry]
        proposal = propose(
            table.margin[who],
            table.alt[who],
            width,
            table.remaining[who],
            table.room[who],
            self.guidance.rule,
            correction_block=self._next_block(table, who, width, load, full=False),
            continuation_block=self._next_block(table, who, width, load, full=True),
        )
        if self.priced:
            assert self.guidance.branches is not None
            active = plan.act != Act.IDLE
            proposal = worthwhile(
                proposal,
                width,
                self.guidance.branches,
                self.prices,
                int(active.sum()),
                int(plan.block[active].sum()),
                int(table.committed[plan.who[active]].sum()),
            )
        grids = proposal.plan_grids()
        plan.branch_kind[entry], plan.branch_parent[entry] = grids[0], grids[1]
        plan.branch_alt[entry], plan.branch_block[entry] = grids[2], grids[3]

    def _next_block(
        self, table: RequestTable, who: IntArray, width: IntArray, load: int, full: bool
    ) -> IntArray:
        """B of a branch, from the lagged table: this round's entropy does not exist yet.

        s comes from e_(t-1), e_(t-2); z is the branch's own hypothesis (B_t, F_t).
        """
        fixed = self._fixed(load)
        if fixed:
            return np.where(table.fixed_block[who] > 0, width, fixed)
        s = certainty(table.e1[who], table.e2[who])
        outcome: BoolArray = np.full(len(who), full)
        values = self.value.values(s, width, outcome, lagged=True)
        prices = self._verify_prices(table, who)
        choice = choose(values, prices, self.guidance.rho_at(load))
        return np.where(table.fixed_block[who] > 0, width, self.menu[choice])
