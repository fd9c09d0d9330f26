"""What rounds did, by block size and category: the raw counts of Tables 3 and 4."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recguide_core.engine.events import RoundView
from recguide_core.records import BranchKind, IntArray

COVERED, REUSED = "covered", "reused"


@dataclass(slots=True)
class BlockCounts:
    """An observer of the engine's rounds.

    Attributes:
        category: of each request, int64 [n].
        blocks: (category, B) -> rounds verified with that width.
        branches: (category, kind, covered | reused) -> rounds; `covered`: a branch assumed the
            length that came, `reused`: its first token was right as well.
        fused: category -> rounds that carried a draft; `rows`: branch rows in all.
    """

    category: IntArray
    blocks: Counter[tuple[int, int]] = field(default_factory=Counter)
    branches: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    fused: Counter[int] = field(default_factory=Counter)
    rows: int = 0

    @classmethod
    def empty(cls, category: IntArray) -> BlockCounts:
        return cls(category)

    def on_rounds(self, view: RoundView) -> None:
        """Count a settled step."""
        outcome, entry = view.outcome, view.verified.entry
        category = [int(self.category[int(view.keys[slot])]) for slot in outcome.who.tolist()]
        self.blocks.update(zip(category, outcome.width.tolist(), strict=True))
        kind = view.plan.branch_kind[entry]
        if not kind.shape[1]:
            return
        self.rows += int((kind >= 0).sum())
        drafted = view.table.has_draft[outcome.who].tolist()
        self.fused.update(c for c, has in zip(category, drafted, strict=True) if has)
        parent = view.plan.branch_parent[entry]
        covers = (kind >= 0) & (parent == (outcome.matched + 1)[:, None])
        for i, k in zip(*(x.tolist() for x in np.nonzero(covers)), strict=True):
            what = (category[i], int(kind[i, k]))
            self.branches[*what, COVERED] += 1
            self.branches[*what, REUSED] += int(outcome.hit[i] == k)

    def shares(self) -> dict[str, float]:
        """Share of rounds by block size, over all requests."""
        total = max(sum(self.blocks.values()), 1)
        by_block: Counter[int] = Counter()
        for (_, block), count in self.blocks.items():
            by_block[block] += count
        return {str(block): by_block[block] / total for block in sorted(by_block)}

    def block_share(self, category: int, block: int) -> float:
        """Share of a category's rounds with that block size."""
        total = sum(n for (c, _), n in self.blocks.items() if c == category)
        return self.blocks[category, block] / max(total, 1)

    def branch_rates(self, category: int) -> dict[str, float]:
        """Table 3 of a category: coverage and reuse of both kinds and no hit, shares of rounds."""
        total = max(self.fused[category], 1)
        rates: dict[str, Any] = {}
        for kind in (BranchKind.CORRECTION, BranchKind.CONTINUATION):
            for what in (COVERED, REUSED):
                name = f"{kind.name.lower()}_{what}"
                rates[name] = self.branches[category, int(kind), what] / total
        covered = rates["correction_covered"] + rates["continuation_covered"]
        rates["no_hit"] = 1.0 - covered
        return rates
