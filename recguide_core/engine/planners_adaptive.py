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
from recguide_core.records import MAX_BLOCK, BoolArray, IntArray, Plan, RequestTable, Source

_DRAFTED = int(Source.DRAFT)
_FEW = 0.01
"""Branch rows of a round below which overlap is not worth the planning."""


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
        self._rhos: dict[int, float] = {}
        self._buckets: dict[tuple[int, int], Reals] = {}

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
        """The block that each request should draft next, int64 [n] (Eq. 3).

        Requests whose draft waits for its verification keep that draft's size.
        """
        block = table.draft_block[who]
        fresh = np.flatnonzero(~table.has_draft[who])
        if not len(fresh):
            return block
        prices, them = self._prices(table, who, load), who[fresh]
        values = self.values(table, them)
        choice = choose(values, prices, self._rho(load), table.remaining[them])
        choice = probe(choice, self.menu, table.rounds[them])
        found = menu_cap(self.menu, choice, table.room[them])
        asked = table.fixed_block[them]
        block[fresh] = np.where(asked > 0, asked, found)
        self._width = float(block[fresh].mean())
        return block

    def _rho(self, load: int) -> float:
        rho = self._rhos.get(load)
        if rho is None:
            rho = self._rhos[load] = self.guidance.rho_at(load)
        return rho

    def _prices(self, table: RequestTable, who: IntArray, load: int) -> Reals:
        kv = int(table.committed[who].sum())
        if self.bucketed:
            return self._full_buckets(load, kv / len(who))
        ready = table.has_draft[who]
        waiting = int(table.draft_block[who] @ ready)
        tokens = waiting + round(self._width * (len(who) - int(ready.sum())))
        forwards, extra = self._forwards(load)
        return ragged_prices(self.prices, len(who), tokens, kv, self.menu, forwards, extra)

    def _full_buckets(self, load: int, kv: float) -> Reals:
        """T_C(B); prefixes within 10 % share a price."""
        key = (load, round(10 * np.log(kv + 1.0)))
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = bucketed_prices(self.guidance.cost, load, self.menu, kv)
        return found

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
        self._pins: dict[int, int] = {}
        self._pays: dict[int, bool] = {}
        self._one = np.ones(len(self.menu))

    def blocks(self, table: RequestTable, who: IntArray, load: int) -> IntArray:
        fixed = self._fixed(load)
        if not fixed:
            return super().blocks(table, who, load)
        asked = table.fixed_block[who]
        return np.where(asked > 0, asked, fixed)

    def _fixed(self, load: int) -> int:
        """The block for all: pinned by tuning at this load, or adaptive drafting is off; else 0."""
        found = self._pins.get(load)
        if found is None:
            pin = self.guidance.pin_at(load) if self.adaptive else self.guidance.block
            found = self._pins[load] = pin
        return found

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
        entry = np.flatnonzero(table.has_draft[who])
        if not len(entry):
            return plan
        them = who[entry]
        # Nobody waits for more tokens than it may still emit.
        plan.block[entry] = np.minimum(plan.block[entry], np.maximum(table.remaining[them], 1))
        reused = np.flatnonzero(table.draft_source[them] != _DRAFTED)
        pays = self._branches_pay(load)
        prices = None
        if not self._fixed(load) and (pays or len(reused)):
            prices = self._verify_prices(table, them)
            self._shorten(plan, table, entry[reused], prices, load)
        if pays:
            self._branch(plan, table, entry, prices, load)
        return plan

    def _shorten(
        self, plan: Plan, table: RequestTable, entry: IntArray, prices: Reals, load: int
    ) -> None:
        """A reused block was sized before the last entropy existed; it may shrink, never grow."""
        if len(entry):
            choice = choose(self.values(table, plan.who[entry]), prices, self._rho(load))
            most = np.maximum(self.menu[choice], 2)
            plan.block[entry] = np.minimum(plan.block[entry], most)

    def _verify_prices(self, table: RequestTable, who: IntArray) -> Reals:
        """Prices of blocks that are drafted already: only the verify forward is still to pay."""
        tokens = int(table.draft_block[who].sum())
        kv = int(table.committed[who].sum())
        return ragged_prices(self.prices, len(who), tokens, kv, self.menu, self._one)

    def _branches_pay(self, load: int) -> bool:
        """Whether any branch is to be expected at this load."""
        if not self.overlap:
            return False
        if not self.priced or not self.guidance.overlap:
            return True
        pays = self._pays.get(load)
        if pays is None:
            pays = self._pays[load] = bool(self.guidance.overlap_at(load)[1].max() > _FEW)
        return pays

    def _branch(
        self,
        plan: Plan,
        table: RequestTable,
        entry: IntArray,
        prices: Reals | None,
        load: int,
    ) -> None:
        who, width = plan.who[entry], plan.block[entry]
        after_miss, after_full = self._next_blocks(table, who, width, prices, load)
        proposal = propose(
            table.margin[who],
            table.alt[who],
            width,
            table.remaining[who],
            table.room[who],
            self.guidance.rule,
            correction_block=after_miss,
            continuation_block=after_full,
        )
        if self.priced:
            assert self.guidance.branches is not None
            proposal = worthwhile(
                proposal,
                width,
                self.guidance.branches,
                self.prices,
                len(plan.who),
                int(plan.block.sum()),
                int(table.committed[plan.who].sum()),
            )
        if not proposal.used.any():
            return
        grids = proposal.plan_grids()
        plan.branch_kind[entry], plan.branch_parent[entry] = grids[0], grids[1]
        plan.branch_alt[entry], plan.branch_block[entry] = grids[2], grids[3]

    def _next_blocks(
        self,
        table: RequestTable,
        who: IntArray,
        width: IntArray,
        prices: Reals | None,
        load: int,
    ) -> tuple[IntArray, IntArray]:
        """B of the branches after a miss and after a full block, int64 [n] each.

        From the lagged table, since this round's entropy does not exist yet: s comes from
        e_(t-1), e_(t-2); z is the branch's own hypothesis (B_t, F_t).
        """
        n, asked = len(who), table.fixed_block[who]
        if prices is None:
            same = np.where(asked > 0, width, self._fixed(load))
            return same, same
        s = certainty(table.e1[who], table.e2[who])
        full: BoolArray = np.arange(2 * n) >= n
        values = self.value.values(np.tile(s, 2), np.tile(width, 2), full, lagged=True)
        block = self.menu[choose(values, prices, self._rho(load))]
        return np.where(asked > 0, width, block[:n]), np.where(asked > 0, width, block[n:])
