"""What a cell learns of its drafts while it runs: how sure they were, and whether they passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recguide_core.engine.events import RoundView
from recguide_core.records import MAX_BLOCK

BINS = 50
_PLACES = np.arange(MAX_BLOCK)
_STEPS = 256
"""Steps that are counted together."""


class DraftQuality:
    """Histograms over [0, 1] of margin M_i and confidence C_i of draft tokens (Figure 3).

    `passed` are the matched tokens of a round, `rejected` the first that failed; tokens behind it
    were never judged and are in neither.
    """

    def __init__(self) -> None:
        self.counts = {
            (what, fate): np.zeros(BINS, np.int64)
            for what in ("margin", "confidence")
            for fate in ("passed", "rejected")
        }
        self._waiting: list[tuple[npt.NDArray[Any], ...]] = []

    def on_rounds(self, view: RoundView) -> None:
        outcome, table = view.outcome, view.table
        who = outcome.who
        # Measured steps pay for a copy; counting waits for many rounds.
        known = (
            table.has_draft.take(who),
            outcome.matched,
            outcome.width,
            table.margin.take(who, axis=0),
            table.confidence.take(who, axis=0),
        )
        self._waiting.append(known)
        if len(self._waiting) >= _STEPS:
            self._count()

    def _count(self) -> None:
        if not self._waiting:
            return
        ready, matched, width, margin, confidence = (
            np.concatenate(column) for column in zip(*self._waiting, strict=True)
        )
        self._waiting.clear()
        drafted = ready & (width > 1)
        passed = (_PLACES >= 1) & (matched[:, None] >= _PLACES) & drafted[:, None]
        rows = np.flatnonzero(drafted & (matched < width - 1))
        for what, values in (("margin", margin), ("confidence", confidence)):
            self._add(what, "passed", values[passed])
            self._add(what, "rejected", values[rows, matched[rows] + 1])

    def _add(self, what: str, fate: str, values: npt.NDArray[np.float32]) -> None:
        place = np.clip((values * BINS).astype(np.int64), 0, BINS - 1)
        self.counts[what, fate] += np.bincount(place, minlength=BINS)

    def record(self) -> dict[str, Any]:
        """Counts by bin: {margin: {passed: [...], rejected: [...]}, confidence: {...}}."""
        self._count()
        found: dict[str, Any] = {}
        for (what, fate), counts in self.counts.items():
            found.setdefault(what, {})[fate] = counts.tolist()
        return found
