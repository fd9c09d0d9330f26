"""How much may be under way: a bounded queue in front of the engine, and its honest refusal."""

from __future__ import annotations

import math

from recguide_core.serving.errors import ApiError

MAX_RETRY_AFTER = 60


class Admission:
    """Counts answers from acceptance to their end.

    Args:
        slots: answers that the engine works on at once; queue: how many more may wait.

    Attributes:
        active: answers under way; refused: requests turned away; draining: nobody new gets in.
    """

    def __init__(self, slots: int, queue: int) -> None:
        self.slots = slots
        self.queue = queue
        self.active = 0
        self.refused = 0
        self.draining = False
        self._seconds = 1.0

    @property
    def waiting(self) -> int:
        """Answers beyond the engine's slots."""
        return max(0, self.active - self.slots)

    def enter(self, answers: int) -> None:
        """Let `answers` in together.

        Raises:
            ApiError: 429 when the queue is full, 503 while the server drains, 400 when they
                would not even fit into an empty server.
        """
        if self.draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
        if answers > self.slots + self.queue:
            raise ApiError(
                400,
                f"{answers} answers in one request exceed the queue of {self.queue}.",
                param="n",
                code="too_many_choices",
            )
        if self.active + answers > self.slots + self.queue:
            self.refused += 1
            raise ApiError(
                429,
                f"The queue is full ({self.waiting} answers wait); try again later.",
                code="queue_full",
                retry_after=self.retry_after(answers),
            )
        self.active += answers

    def leave(self, seconds: float | None = None) -> None:
        """One answer has ended, after `seconds` in all."""
        self.active -= 1
        if seconds is not None:
            self._seconds += 0.1 * (seconds - self._seconds)

    def retry_after(self, answers: int = 1) -> int:
        """Seconds until `answers` places should be free: Little's law on recent answers."""
        rate = self.slots / max(self._seconds, 1e-3)
        return max(1, min(MAX_RETRY_AFTER, math.ceil(answers / rate)))
