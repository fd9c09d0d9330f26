"""Stop strings over a growing text, whatever the token and window edges. Knows only text."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Finds the first stop string to complete, character by character.

    The result does not depend on how the text is cut into pieces: of several stops the one that
    ends first wins, of those that end together the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self._longest = max((len(stop) for stop in self.stops), default=0)

    def find(self, text: str, fresh: int) -> int | None:
        """Start of the first completed stop, or None.

        Args:
            fresh: how many last characters of `text` have not been searched yet.
        """
        begin = max(0, len(text) - fresh - self._longest + 1)
        best: tuple[int, int] | None = None
        for stop in self.stops:
            at = text.find(stop, begin)
            if at >= 0 and (best is None or (at + len(stop), at) < best):
                best = (at + len(stop), at)
        return None if best is None else best[1]

    def held(self, text: str) -> int:
        """Length of the longest end of `text` that may grow into a stop string."""
        for count in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-count:]
            if any(stop.startswith(end) for stop in self.stops):
                return count
        return 0
