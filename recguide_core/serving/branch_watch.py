"""Which branches rounds carried and which of them paid, counted as the engine settles them."""

from __future__ import annotations

from collections import Counter

import numpy as np

from recguide_core.engine.events import RoundView


class BranchWatch:
    """An engine observer.

    Attributes:
        offered, hits: branches by `BranchKind` since the start.
        wanted: keys of the requests whose branches are noted one by one.
        latest: key -> (kind, position, block) of each branch of the newest step.
    """

    def __init__(self) -> None:
        self.offered: Counter[int] = Counter()
        self.hits: Counter[int] = Counter()
        self.wanted: set[str] = set()
        self.latest: dict[str, list[tuple[int, int, int]]] = {}

    def on_rounds(self, view: RoundView) -> None:
        self.latest = {}
        plan, entry, hit = view.plan, view.verified.entry, view.outcome.hit
        if not plan.branch_kind.shape[1]:
            return
        kinds = plan.branch_kind[entry]
        self._count(self.offered, kinds[kinds >= 0])
        took = np.flatnonzero(hit >= 0)
        self._count(self.hits, kinds[took, hit[took]])
        if not self.wanted:
            return
        for i, slot in zip(entry.tolist(), view.outcome.who.tolist(), strict=True):
            key = view.keys[slot]
            if key in self.wanted:
                columns = (plan.branch_kind[i], plan.branch_parent[i], plan.branch_block[i])
                rows = np.stack(columns, axis=1)[plan.branch_kind[i] >= 0].tolist()
                self.latest[key] = [(kind, parent, block) for kind, parent, block in rows]

    @staticmethod
    def _count(counter: Counter[int], kinds: np.ndarray) -> None:
        values, counts = np.unique(kinds, return_counts=True)
        for kind, count in zip(values.tolist(), counts.tolist(), strict=True):
            counter[kind] += count
