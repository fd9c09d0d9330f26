"""RecGuide's figures on SGLang's `/metrics` page.

The scheduler's process writes them; SGLang's server reads all processes' values through
prometheus_client's multi-process folder, so names and labels are all it takes.
"""

from __future__ import annotations

import logging
from typing import Any

from recguide_core import metrics as figures
from recguide_core.sglang_plugin.driver import StepDriver

LOG = logging.getLogger("recguide.sglang")

COUNTERS = {
    "steps": "forwards",
    "prefills": "forwards of prompts",
    "query_tokens": "packed query tokens of all forwards",
    "rounds": "decode rounds",
    "request_forwards": "forwards that carried a request's decode rows, summed over requests",
    "reused": "rounds whose draft came from a branch",
    "round_tokens": "tokens that rounds emitted",
    "branches": "branch rows",
    "hits": "branches that became the next draft",
}
GAUGES = {
    "tau": figures.METRICS["tau"].formula,
    "accepted_length": figures.METRICS["accepted_length"].formula,
    "reuse": figures.METRICS["reuse"].formula,
}


class Exporter:
    """Publishes a driver's tally; without metrics it only logs what was resolved.

    Args:
        enabled: the server runs with --enable-metrics.
    """

    def __init__(self, driver: StepDriver, method: str, layout: str, *, enabled: bool) -> None:
        self.driver = driver
        self.method, self.layout = method, layout
        self._seen: dict[str, int] = {}
        self._seen_blocks: dict[int, int] = {}
        self._counters: dict[str, Any] = {}
        self._gauges: dict[str, Any] = {}
        self._blocks: Any = None
        if enabled:
            self._make()

    def _make(self) -> None:
        from prometheus_client import Counter, Gauge

        labels = {"method": self.method, "layout": self.layout}
        for name, text in COUNTERS.items():
            self._counters[name] = Counter(f"recguide:{name}", text, list(labels)).labels(**labels)
        for name, text in GAUGES.items():
            gauge = Gauge(f"recguide:{name}", text, list(labels), multiprocess_mode="mostrecent")
            self._gauges[name] = gauge.labels(**labels)
        self._blocks = Counter(
            "recguide:round_blocks", "rounds by block size B", [*labels, "block_size"]
        )

    def announce(self, notes: list[str]) -> None:
        """Log what the server decodes with, and why if a setting was not taken as given."""
        LOG.warning("RecGuide: method %s, layout %s.", self.method, self.layout)
        for note in notes:
            LOG.warning("RecGuide: %s", note)

    def last_was_graph(self) -> bool:
        """The last forward replayed a captured graph."""
        return bool(getattr(self.driver.executor, "replayed", False))

    def update(self) -> None:
        """Publish what the last step added."""
        if not self._counters:
            return
        tally = self.driver.tally
        for name, counter in self._counters.items():
            now = int(getattr(tally, name))
            counter.inc(now - self._seen.get(name, 0))
            self._seen[name] = now
        for block, count in tally.blocks.items():
            labels = (self.method, self.layout, str(block))
            self._blocks.labels(*labels).inc(count - self._seen_blocks.get(block, 0))
            self._seen_blocks[block] = count
        values = {
            "tau": figures.tau(tally.round_tokens, tally.request_forwards),
            "accepted_length": figures.accepted_length(tally.round_tokens, tally.rounds),
            "reuse": figures.reuse(tally.reused, tally.rounds),
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(value)
