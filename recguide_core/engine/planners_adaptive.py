"""Verification guided adaptive drafting: each request's next block by its history."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from recguide_core.engine.guidance import PAPER_MENU, Guidance
from recguide_core.engine.planners import planned
from recguide_core.policy.allocate import (
    PROBE_PERIOD,
    bucketed_prices,
    choose,
    menu_cap,
    probe,
)
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.ragged import RaggedPrices
from recguide_core.policy.signals import certainty
from recguide_core.policy.value import Reals
from recguide_core.records import BoolArray, IntArray, Plan, RequestTable

Shape: TypeAlias = tuple[int, int, int]
"""Requests, query tokens and committed tokens of a forward that is being planned."""


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
        self.ragged = RaggedPrices(self.prices, self.menu)
        self.max_in_flight = int(self.menu[-1])
        self._serial: Reals = np.where(self.menu == 1, 1.0, 2.0)
        self._width = float(self.menu[len(self.menu) // 2])
        self._rhos: dict[int, float] = {}
        self._buckets: dict[tuple[int, int], Reals] = {}

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        block, ready = table.draft_block.take(who), table.has_draft.take(who)
        self._draw(table, who, load, block, ready, self._shape(table, who, block, ready))
        return planned(who, np.minimum(block, table.room.take(who)), ready)

    def _shape(
        self, table: RequestTable, who: IntArray, block: IntArray, ready: BoolArray
    ) -> Shape:
        """The coming forward: whose draft waits verifies its `block`, the others' is not chosen."""
        unknown = len(who) - int(np.count_nonzero(ready))
        tokens = int(np.add.reduce(block * ready)) + round(self._width * unknown)
        return len(who), tokens, int(np.add.reduce(table.committed.take(who)))

    def _draw(
        self,
        table: RequestTable,
        who: IntArray,
        load: int,
        block: IntArray,
        ready: BoolArray,
        shape: Shape,
    ) -> None:
        """Fill `block` [n] of those who draft next with their choice (Eq. 3).

        Requests whose draft waits for its verification (`ready`) keep that draft's size.
        """
        fresh = (~ready).nonzero()[0]
        if not len(fresh):
            return
        prices, them = self._prices(load, shape), who.take(fresh)
        values = self.value.values_at(self.cells(table, them, self.spans(table, them)))
        choice = self._choose(values, prices, load, table.remaining.take(them))
        choice = probe(choice, self.menu, table.rounds.take(them), them, self._probe_period())
        found = menu_cap(self.menu, choice, table.room.take(them))
        asked = table.fixed_block.take(them)
        if np.count_nonzero(asked):
            found = np.where(asked > 0, asked, found)
        block[fresh] = found
        self._chosen(them, values, found)
        self._width = int(np.add.reduce(found)) / len(fresh)

    def _choose(self, values: Reals, prices: Reals, load: int, remaining: IntArray) -> IntArray:
        """Menu index of each drafting request's block, int64 [n]; see `allocate.choose`."""
        return choose(values, prices, self._rho(load), remaining)

    def _probe_period(self) -> int:
        """Rounds of a request on plain AR from one small draft to the next."""
        return PROBE_PERIOD

    def _chosen(self, slots: IntArray, values: Reals, block: IntArray) -> None:
        """Requests in `slots` draft `block` [n]; `values` [n, menu] is what they chose by."""

    def spans(self, table: RequestTable, who: IntArray) -> IntArray:
        """Joint bin of s_t of each request, int64 [n]."""
        return self.value.spans(certainty(table.e1.take(who), table.e2.take(who)))

    def cells(self, table: RequestTable, who: IntArray, spans: IntArray) -> IntArray:
        """Cell of (s_t, z_t) of each request, int64 [n]."""
        previous = table.prev_block.take(who)
        if self.ignore_outcome:
            # Pooled strata (-1) wherever there is a history at all.
            previous = np.where(previous > 0, -1, previous)
        return self.value.cells(spans, previous, table.prev_full.take(who))

    def _rho(self, load: int) -> float:
        rho = self._rhos.get(load)
        if rho is None:
            rho = self._rhos[load] = self.guidance.rho_at(load)
        return rho

    def _prices(self, load: int, shape: Shape) -> Reals:
        """T of each block where the draft is still to be made, float64 [menu]."""
        if self.bucketed:
            return self._full_buckets(load, shape[2] / shape[0])
        forwards, extra = self._forwards(load)
        return self.ragged(*shape, forwards, extra)

    def _full_buckets(self, load: int, kv: float) -> Reals:
        """T_C(B); prefixes within 10 % share a price."""
        key = (load, round(10 * np.log(kv + 1.0)))
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = bucketed_prices(self.guidance.cost, load, self.menu, kv)
        return found

    def _forwards(self, load: int) -> tuple[Reals, Reals | None]:
        """Forwards of a round with each block, and its query tokens beside draft and verify."""
        del load
        return self._serial, None
