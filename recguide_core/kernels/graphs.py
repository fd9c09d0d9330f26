"""Captured graphs by shape: made on first use, under a memory cap, with a reason for every refusal.

Knows keys and callables, no CUDA: `cuda_capture` hands it the real thing, tests hand it a fake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from recguide_core.kernels import launch

Run = Callable[[], None]
FIRST = "first of its shape"
"""Reason of the one eager forward before a capture."""


class Capture(Protocol):
    """Makes graphs. The forward of a round moves state, so who runs it how often matters."""

    def warm(self, forward: Run) -> None:
        """Run `forward` once, so that whatever it sets up on first use is set up."""

    def capture(self, forward: Run) -> Run:
        """Record `forward` without running it; the result replays it."""


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Size that a graph was captured for.

    Attributes:
        variant: what else tells forwards of one size apart, "" for a plain step.
    """

    tokens: int
    requests: int
    variant: str = ""

    @classmethod
    def of(cls, tokens: int, requests: int, variant: str = "") -> GraphKey | None:
        """The smallest buckets that hold a forward; None when it is too large for a graph."""
        t = launch.bucket(tokens, launch.TOKEN_BUCKETS)
        r = launch.bucket(requests, launch.REQUEST_BUCKETS)
        return None if t is None or r is None else cls(t, r, variant)


@dataclass(slots=True)
class GraphReport:
    """What `doctor` and the metrics show.

    Attributes:
        replays, eager: forwards run either way; reasons: why, and how often, for the eager ones.
        reread: steps of which some rows were read out again by torch (sampling, logprobs).
        captured: keys with a graph; bytes: memory that they hold.
        resident: rounds that ran wholly on the device; host: why, and how often, a step with
            decoding requests was built and settled on the host instead.
        not_resident: why no round can run wholly on the device, "" where some can.
    """

    replays: int = 0
    eager: int = 0
    reread: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    captured: list[GraphKey] = field(default_factory=list)
    bytes: int = 0
    resident: int = 0
    not_resident: str = "no device-resident rounds"
    host: dict[str, int] = field(default_factory=dict)

    def on_host(self, reason: str) -> None:
        """Count a step that the host took over."""
        self.host[reason] = self.host.get(reason, 0) + 1


class GraphCache:
    """Runs a forward by replaying its graph, or eagerly when there can be none.

    Args:
        capture: makes graphs; None means that the device has no graphs.
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
        """Run `forward` once; it must use the same buffers on every call for `key`."""
        replay = self._replay.get(key)
        if replay is not None:
            self.report.replays += 1
            replay()
        elif key in self._refused or self._refuses(key):
            self.run_eager(forward, self._refused[key])
        else:
            self._first(key, forward)

    def run_eager(self, forward: Run, reason: str) -> None:
        """Run without a graph and count why."""
        self.report.eager += 1
        self.report.reasons[reason] = self.report.reasons.get(reason, 0) + 1
        forward()

    def _refuses(self, key: GraphKey) -> bool:
        """Whether `key` gets no graph; notes the reason."""
        if self._capture is None:
            self._refused[key] = self._reason
        elif self.report.bytes >= self._cap:
            self._refused[key] = f"graphs hold their cap of {self._cap >> 20} MiB"
        return key in self._refused

    def _first(self, key: GraphKey, forward: Run) -> None:
        """The first forward of a key runs eagerly, and is then recorded for the others."""
        assert self._capture is not None
        before = self._memory()
        warm = self._capture.warm
        self.run_eager(lambda: warm(forward), FIRST)
        try:
            self._replay[key] = self._capture.capture(forward)
        except RuntimeError as error:
            self._refused[key] = f"capture failed: {str(error).splitlines()[0]}"
            return
        self.report.bytes += max(0, self._memory() - before)
        self.report.captured.append(key)
