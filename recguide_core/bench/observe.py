"""What a cell learns of its drafts while it runs: how sure they were, and whether they passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recguide_core.engine.events import RoundView
from recguide_core.records import MAX_BLOCK

BINS = 50
_PLACES = np.arange(MAX_BLOCK)


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

    def on_rounds(self, view: RoundView) -> None:
        who, matched = view.outcome.who, view.outcome.matched
        drafted = view.table.has_draft[who] & (view.outcome.width > 1)
        if not drafted.any():
            return
        judged = np.broadcast_to(_PLACES, (len(who), MAX_BLOCK))
        passed = (judged >= 1) & (judged <= matched[:, None]) & drafted[:, None]
        failed = drafted & ~view.outcome.full
        rows = np.flatnonzero(failed)
        for what, values in (("margin", view.table.margin), ("confidence", view.table.confidence)):
            here = values[who]
            self._add(what, "passed", here[passed])
            self._add(what, "rejected", here[rows, matched[rows] + 1])

    def _add(self, what: str, fate: str, values: npt.NDArray[np.float32]) -> None:
        place = np.clip((values * BINS).astype(np.int64), 0, BINS - 1)
        self.counts[what, fate] += np.bincount(place, minlength=BINS)

    def record(self) -> dict[str, Any]:
        """Counts by bin: {margin: {passed: [...], rejected: [...]}, confidence: {...}}."""
        found: dict[str, Any] = {}
        for (what, fate), counts in self.counts.items():
            found.setdefault(what, {})[fate] = counts.tolist()
        return found
