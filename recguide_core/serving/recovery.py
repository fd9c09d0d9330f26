"""After a step that raised: find the request at fault, end it, lose nothing of the others.

Everybody gives pages back and recomputes, which changes no token. They come back one at a time;
whoever has just joined when a step fails again is at fault. A failure repeats at the round at
which it came, so two rounds clear a request.
"""

from __future__ import annotations

from collections import deque

from recguide_core.engine.core import EngineCore
from recguide_core.engine.scheduler import Live

ROUNDS_TO_CLEAR = 2


class Recovery:
    """Trials of the requests that ran when a step failed.

    Attributes:
        failed: key -> what to tell the requests found at fault.
        faults: steps that raised since the start.
    """

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._suspects: deque[Live] = deque()
        self._trial: Live | None = None
        self._clear_at = 0
        self.failed: dict[str, str] = {}
        self.faults = 0

    @property
    def active(self) -> bool:
        """Requests are on trial or wait for theirs; nobody new may start meanwhile."""
        return self._trial is not None or bool(self._suspects)

    def after_fault(self, error: Exception) -> None:
        """Put everybody who ran on trial, but end a request known to be at fault."""
        self.faults += 1
        scheduler = self._engine.scheduler
        running = sorted(scheduler.running.values(), key=lambda live: live.order)
        culprit = self._trial if self._trial in running else None
        for live in reversed(running):
            scheduler.preempt(live)
        self._trial = None
        if culprit is not None:
            self.failed[culprit.request.key] = f"{type(error).__name__} in the engine's step"
            self._engine.abort(culprit.request.key)
        self._suspects.extendleft(reversed(scheduler.waiting))
        scheduler.waiting.clear()

    def before_step(self) -> None:
        """Let the next suspect join once the one on trial is cleared."""
        if self._trial is not None and not self._cleared(self._trial):
            return
        self._trial = None
        if self._suspects:
            self._trial = self._suspects.popleft()
            self._clear_at = self._trial.rounds + ROUNDS_TO_CLEAR
            self._engine.scheduler.add(self._trial)

    def release(self, key: str) -> None:
        """Give a waiting suspect back to the scheduler, so that it can be aborted."""
        for live in list(self._suspects):
            if live.request.key == key:
                self._suspects.remove(live)
                self._engine.scheduler.add(live)

    def held(self) -> list[Live]:
        """Requests that wait for their trial."""
        return list(self._suspects)

    def _cleared(self, live: Live) -> bool:
        scheduler = self._engine.scheduler
        present = live.slot >= 0 or live in scheduler.waiting
        return not present or live.rounds >= self._clear_at
