"""What a planner does in some steps only, because planning is host work."""

from __future__ import annotations

_EARLY = 128
"""First steps, of which each is learned from: what is to be learned is soon seen."""
_SEVERAL = 8
"""Requests from which only every third step is learned from."""
_CROWD = 16
"""From three crowds on it is every k-th step, k being the crowds or one more; branches, of which
few pay there, are looked for in the same steps."""
_PATIENCE, _RARELY = 8, 5
"""Steps of several requests in which one in `_ENOUGH` at most had a branch that paid, until they
are looked for in every fifth step only."""
_ENOUGH = 32


class Turns:
    """Counts steps and says what is due in them.

    Periods are odd, so that drafts and verifications that alternate both get theirs.
    """

    def __init__(self) -> None:
        self._step = 0
        self._barren: dict[int, int] = {}

    def next_step(self) -> None:
        self._step += 1

    def learns(self, requests: int) -> bool:
        """Whether to learn from a step of so many requests."""
        due = self._step <= _EARLY or self._step % _period(requests) == 0
        return requests > 0 and due

    def looks(self, requests: int, load: int) -> bool:
        """Whether to look for branches in a step: in its turn, until few were found for long."""
        period = _period(requests) if requests >= 3 * _CROWD else 1
        if self._barren.get(load, 0) >= _PATIENCE:
            period = max(period, _RARELY)
        return self._step % period == 0

    def found(self, branches: int, requests: int, load: int) -> None:
        """So many branches that pay were found in a step."""
        few = requests >= _SEVERAL and branches * _ENOUGH <= requests
        self._barren[load] = self._barren.get(load, 0) + 1 if few else 0


def _period(requests: int) -> int:
    return 1 if requests < _SEVERAL else max(3, requests // _CROWD | 1)
