"""Captured graphs by shape: made on first use, under a memory cap, with a reason for every refusal.

Knows keys and callables, no CUDA: `cuda_capture` hands it the real thing, tests hand it a fake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from recguide_core.kernels import launch

Run = Callable[[], None]
Capture = Callable[[Run], Run]


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Size that a graph was captured for."""

    tokens: int
    requests: int

    @classmethod
    def of(cls, tokens: int, requests: int) -> GraphKey | None:
        """The smallest buckets that hold a forward; None when it is too large for a graph."""
        t = launch.bucket(tokens, launch.TOKEN_BUCKETS)
        r = launch.bucket(requests, launch.REQUEST_BUCKETS)
        return None if t is None or r is None else cls(t, r)


@dataclass(slots=True)
class GraphReport:
    """What `doctor` and the metrics show.

    Attributes:
        replays, eager: forwards run either way; reasons: why, and how often, for the eager ones.
        captured: keys with a graph; bytes: memory that they hold.
    """

    replays: int = 0
    eager: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    captured: list[GraphKey] = field(default_factory=list)
    bytes: int = 0


class GraphCache:
    """Runs a forward by replaying its graph, or eagerly when there can be none.

    Args:
        capture: turns a callable into its replay; None means that the device has no graphs.
        reason: why `capture` is None.
        cap_bytes: memory of all graphs together.
        memory: bytes in use on the device now.
    """

    def __init__(
        self,
        capture: Capture | None,
        cap_bytes: int,
        memory: Callable[[], int],
        reason: str = "the device has no graphs",
    ) -> None:
        self._capture = capture
        self._cap = cap_bytes
        self._memory = memory
        self._reason = reason
        self._replay: dict[GraphKey, Run] = {}
        self._refused: dict[GraphKey, str] = {}
        self.report = GraphReport()

    def run(self, key: GraphKey, forward: Run) -> None:
        """Run `forward`, which must read and write the same buffers on every call for `key`."""
        replay = self._replay.get(key) or self._try_capture(key, forward)
        if replay is not None:
            self.report.replays += 1
            replay()
        else:
            self.run_eager(forward, self._refused[key])

    def run_eager(self, forward: Run, reason: str) -> None:
        """Run without a graph and count why."""
        self.report.eager += 1
        self.report.reasons[reason] = self.report.reasons.get(reason, 0) + 1
        forward()

    def _try_capture(self, key: GraphKey, forward: Run) -> Run | None:
        if key in self._refused:
            return None
        if self._capture is None:
            self._refused[key] = self._reason
            return None
        if self.report.bytes >= self._cap:
            self._refused[key] = f"graphs hold their cap of {self._cap >> 20} MiB"
            return None
        before = self._memory()
        try:
            replay = self._capture(forward)
        except RuntimeError as error:
            self._refused[key] = f"capture failed: {str(error).splitlines()[0]}"
            return None
        self.report.bytes += max(0, self._memory() - before)
        self.report.captured.append(key)
        self._replay[key] = replay
        return replay
