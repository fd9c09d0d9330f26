"""RecGuide's plan written out request by request, from the paper and the docs of the policy.

Slow and plain: what the vectorised planner is held against. Shares nothing with it but the
tables' rows (`ValueTable.strata`, `BranchTable.rate`), the cost model and `best_prefix`.
"""

from __future__ import annotations

import numpy as np

from recguide_core.policy.branch_table import MARGIN_EDGES
from recguide_core.policy.cost import FUSED, MIXED
from recguide_core.policy.value import ANY

TIE = 1e-12
FEW = 0.01


def certainty(e1: np.float32, e2: np.float32) -> np.float32:
    if np.isnan(e1):
        return np.float32(-0.5) * (e2 + e2)
    return np.float32(-0.5) * (e1 + (e1 if np.isnan(e2) else e2))


def values(table, s, previous: int, full: bool, lagged: bool) -> np.ndarray:
    """V_B(s, z) of one history."""
    mine = [t for t in table.strata if t.lagged == lagged]
    found = [t for t in mine if t.prev_block == previous and (previous <= 0 or t.prev_full == full)]
    stratum = found[0] if found else next(t for t in mine if t.prev_block == ANY)
    bin_ = -1 if np.isnan(s) else sum(float(edge) < float(s) for edge in stratum.edges)
    return stratum.survival[bin_].sum(axis=1)


def prices(planner, requests: int, tokens: int, kv: int, forwards, extra) -> list[float]:
    """T of a round with each block of the menu, at the margin of one packed forward.

    Shapes within an eighth of a token a request are taken for the same.
    """
    if requests >= 16:
        tokens = (requests // 8) * round(tokens / (requests // 8))
    tokens = max(tokens, requests)
    width = tokens / requests
    menu = planner.menu.tolist()
    query = [max(tokens + (b - width), requests) for b in menu]
    now, *ms = planner.prices.ms(MIXED, requests, np.array([tokens, *query], float), kv)
    out = []
    for i, block in enumerate(menu):
        added = query[i] - tokens
        slope = (ms[i] - now) / (1.0 if added == 0 else added)
        price = forwards[i] * max(now + requests * slope * (block - width), 0.0)
        out.append(price + requests * slope * extra[i])
    return out


def best_block(menu: list[int], worth, price: list[float], rho: float) -> int:
    """Index of the best block, ties to the smaller.

    Plain AR counts for the square root of the tokens that the best draft would bring.
    """
    score = [
        float(w) - (rho * p + TIE * i) for i, (w, p) in enumerate(zip(worth, price, strict=True))
    ]
    if menu[0] == 1 and len(menu) > 1:
        best = max(range(1, len(menu)), key=lambda i: (score[i], -i))
        score[0] *= float(np.sqrt(max(float(worth[best]), 1.0)))
    return max(range(len(menu)), key=lambda i: (score[i], -i))


class PlainPlanner:
    """One `plan` of a `RecGuidePlanner` that does not learn; reads its tables and mean width."""

    def __init__(self, planner, table, who, load: int) -> None:
        self.planner, self.table, self.load = planner, table, load
        self.who = [int(i) for i in who]
        self.menu = planner.menu.tolist()
        rate = planner.guidance.rate_at(load)
        self.rho = min(planner.guidance.rho_at(load), 1.5 * rate)
        self.width = planner._width

    def plan(self) -> list[tuple[int, int, list[tuple[int, int, int, int]]]]:
        """(act, block, branches) of each request."""
        table = self.table
        block = {i: self._drawn(i) for i in self.who if not table.has_draft[i]}
        ready = [i for i in self.who if table.has_draft[i]]
        pays = self._pays()
        reused = [i for i in ready if table.draft_source[i] != 1]
        price = None
        if ready and (pays or reused):
            ones = [1.0] * len(self.menu)
            price = prices(self.planner, *self._shape(), ones, [0.0] * len(ones))
        for i in ready:
            width = min(
                int(table.draft_block[i]), int(table.room[i]), max(int(table.remaining[i]), 1)
            )
            if price is not None and i in reused:
                at = best_block(self.menu, self._values(i), price, self.rho)
                width = min(width, max(self.menu[at], 2))
            block[i] = width
        branches = self._branches(ready, block, price) if pays and ready else {}
        acts = {i: 2 if table.has_draft[i] or block[i] == 1 else 1 for i in self.who}
        return [(acts[i], block[i], branches.get(i, [])) for i in self.who]

    def _values(self, i: int) -> np.ndarray:
        table = self.table
        s = certainty(table.e1[i], table.e2[i])
        full = bool(table.prev_full[i])
        return values(self.planner.value, s, int(table.prev_block[i]), full, False)

    def _drawn(self, i: int) -> int:
        table, menu = self.table, self.menu
        room, asked = int(table.room[i]), int(table.fixed_block[i])
        worth = np.minimum(self._values(i), int(table.remaining[i]))
        at = best_block(menu, worth, self._round_prices(), self.rho)
        if at == 0 and menu[0] == 1 and len(menu) > 1 and (table.rounds[i] + 5 * i) % 16 == 15:
            at = 1
        fitting = [b for b in menu if b <= room]
        return min(asked or (min(menu[at], fitting[-1]) if fitting else 1), room)

    def _shape(self) -> tuple[int, int, int]:
        """Requests, query tokens and K/V tokens of the step, before anything is chosen."""
        table = self.table
        kv = int(sum(table.committed[i] for i in self.who))
        waiting = [int(table.draft_block[i]) for i in self.who if table.has_draft[i]]
        tokens = sum(waiting) + round(self.width * (len(self.who) - len(waiting)))
        return len(self.who), tokens, kv

    def _round_prices(self) -> list[float]:
        planner = self.planner
        forwards = [1.0 if b == 1 else 2.0 for b in self.menu]
        extra = [0.0] * len(self.menu)
        if planner.overlap and planner.guidance.overlap:
            reuse, rows = planner.guidance.overlap_at(self.load)
            at = [planner.guidance.value.menu.tolist().index(b) for b in self.menu]
            forwards = [f - reuse[j] for f, j in zip(forwards, at, strict=True)]
            extra = [rows[j] * b for b, j in zip(self.menu, at, strict=True)]
        return prices(planner, *self._shape(), forwards, extra)

    def _pays(self) -> bool:
        planner = self.planner
        if not planner.overlap:
            return False
        if not planner.priced or not planner.guidance.overlap:
            return True
        return bool(max(planner.guidance.overlap_at(self.load)[1]) > FEW)

    def _branches(self, ready, block, price):
        rule, table, found = self.planner.guidance.rule, self.table, []
        for i in ready:
            width = block[i]
            miss, full = self._next(i, width, price)
            risky = [p for p in range(1, width) if table.margin[i, p] < rule.delta]
            places: list[tuple[int, int, int, int, int, float]] = []
            for rank, p in enumerate(risky[: rule.corrections]):
                alt = int(table.alt[i, p])
                if alt >= 0:
                    places.append((0, p, alt, miss, rank, float(table.margin[i, p])))
            if len(risky) <= 2 and width > 1 and rule.continuation:
                lowest = min(float(m) for m in table.margin[i, 1:width])
                places.append((1, width, -1, full, len(risky), lowest))
            for place in places:
                _, parent, _, size, _, _ = place
                if parent < table.remaining[i] and parent + size <= table.room[i] and size > 1:
                    found.append((i, place))
        if self.planner.priced:
            found = self._worthwhile(found, block)
        out: dict[int, list[tuple[int, int, int, int]]] = {}
        for i, (kind, parent, alt, size, _, _) in found:
            out.setdefault(i, []).append((kind, parent, alt, size))
        return {i: sorted(places, key=lambda b: (b[0], b[1])) for i, places in out.items()}

    def _next(self, i: int, width: int, price) -> tuple[int, int]:
        asked = int(self.table.fixed_block[i])
        if asked:
            return width, width
        s = certainty(self.table.e1[i], self.table.e2[i])
        sizes = []
        for full in (False, True):
            worth = values(self.planner.value, s, width, full, True)
            sizes.append(self.menu[best_block(self.menu, worth, price, self.rho)])
        return sizes[0], sizes[1]

    def _worthwhile(self, found, block):
        if not found:
            return []
        table, planner = self.planner.guidance.branches, self.planner
        chance = []
        for i, (kind, _, _, _, rank, margin) in found:
            rows = [j for j, b in enumerate(table.menu.tolist()) if b >= block[i]]
            row = rows[0] if rows else len(table.menu) - 1
            bin_ = sum(edge <= margin for edge in MARGIN_EDGES)
            chance.append(float(table.rate[row, kind, min(rank, 2), bin_]))
        # Equal savings per token enter by place (all first corrections, then second, ...).
        place = [2 if b[0] else b[4] for _, b in found]
        order = sorted(
            range(len(found)),
            key=lambda k: (-chance[k] / found[k][1][3], place[k], self.who.index(found[k][0])),
        )
        tokens = sum(block.values())
        query = [tokens, *(tokens + np.cumsum([found[k][1][3] for k in order]))]
        kv = int(sum(self.table.committed[i] for i in self.who))
        n = len(self.who)
        cost = planner.prices.ms(FUSED, n, np.array(query), kv)
        gain, best, kept = 0.0, 0.0, 0
        for j, k in enumerate(order):
            gain += chance[k] * (float(cost[0]) / n)
            net = gain - (float(cost[j + 1]) - float(cost[0]))
            if net > best:
                best, kept = net, j + 1
        return [found[k] for k in sorted(order[:kept])]
