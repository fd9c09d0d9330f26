"""Metrics of a server in Prometheus text. Counters of the engine are read when scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from recguide_core import metrics
from recguide_core.engine.core import EngineCore
from recguide_core.records import MAX_BLOCK, BranchKind, Finish, Source
from recguide_core.serving.admission import Admission
from recguide_core.serving.branch_watch import BranchWatch
from recguide_core.serving.execution_metrics import execution_metrics
from recguide_core.serving.generation import Generation, Piece

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LENGTHS = tuple(range(1, MAX_BLOCK + 1))
TAUS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


class ServerMetrics:
    """Everything that `/metrics` shows.

    Args:
        guarantee: what may be said of equality with plain decoding (see `runtime.guarantee`).
    """

    def __init__(
        self,
        engine: EngineCore,
        admission: Admission,
        branches: BranchWatch,
        info: dict[str, str],
    ) -> None:
        # A second sample per series that says only when it began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"recguide_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float] = SECONDS) -> Histogram:
            return Histogram(f"recguide_{name}", text, buckets=tuple(buckets), registry=registry)

        self.http = counter("http_requests", "Answers by path and status", ("path", "status"))
        self.answers = counter("answers", "Answers that ended", ("finish", "method"))
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.output_tokens = counter("output_tokens", "Tokens given out", ("method",))
        self.round_tokens = counter("round_tokens", "Tokens that rounds gave", ("method",))
        self.forwards = counter("decode_forwards", "Forwards of decode rows", ("method",))
        self.rounds = counter("rounds", "Rounds by block size", ("block", "method"))
        self.drafts = counter("verified_drafts", "Rounds by where the draft came from", ("source",))
        self.ttft = histogram("time_to_first_token_seconds", "First token minus arrival")
        self.tpot = histogram("time_per_output_token_seconds", "(end - first) / (tokens - 1)")
        self.e2e = histogram("request_seconds", "End minus arrival")
        self.token_gap = histogram("inter_token_seconds", "Gap before a chunk / its tokens")
        self.chunk_gap = histogram("inter_chunk_seconds", "Gap between two chunks")
        self.chunk_tokens = histogram("chunk_tokens", "Tokens that a chunk brings", LENGTHS)
        self.accepted = histogram("accepted_length_tokens", "Accepted length A", LENGTHS)
        self.tau = histogram("request_tau", "Tokens per two forwards, by answer", TAUS)
        registry.register(EngineCollector(engine, admission, branches, info))

    def on_piece(self, generation: Generation, piece: Piece) -> None:
        """Count what one step brought to an answer."""
        event = piece.event
        if event is None:
            self.answers.labels("refused", generation.method).inc()
            return
        count, method = len(event.tokens), generation.method
        if event.block:
            self.rounds.labels(str(event.block), method).inc()
            self.drafts.labels(Source(event.source).name.lower()).inc()
            self.accepted.observe(event.accepted)
        if count:
            self.output_tokens.labels(method).inc(count)
            self._gaps(generation, piece, count)
        if event.finished is not None:
            self._end(generation, event.finished.finish)

    def _gaps(self, generation: Generation, piece: Piece, count: int) -> None:
        self.chunk_tokens.observe(count)
        if generation.chunk_at is None:
            self.ttft.observe(piece.at - generation.arrival)
            return
        gap = piece.at - generation.chunk_at
        self.chunk_gap.observe(gap)
        for _ in range(count):
            self.token_gap.observe(gap / count)

    def _end(self, generation: Generation, finish: Finish) -> None:
        done = generation.finished
        assert done is not None and generation.end is not None
        self.answers.labels(str(finish), generation.method).inc()
        self.round_tokens.labels(generation.method).inc(done.round_tokens)
        self.forwards.labels(generation.method).inc(done.forwards)
        self.e2e.observe(generation.end - generation.arrival)
        tau = metrics.tau(done.round_tokens, done.forwards)
        if tau is not None:
            self.tau.observe(tau)
        if generation.first is not None:
            tpot = metrics.tpot_ms(generation.first, generation.end, len(done.tokens))
            if tpot is not None:
                self.tpot.observe(tpot / 1e3)

    def text(self) -> bytes:
        """The exposition, Prometheus text format."""
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads the engine's own numbers at scrape time; the engine does nothing for it."""

    def __init__(
        self,
        engine: EngineCore,
        admission: Admission,
        branches: BranchWatch,
        info: dict[str, str],
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._branches = branches
        self._info = info

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._branch_outcomes()
        yield from execution_metrics(getattr(self._engine, "execution", None))
        info = InfoMetricFamily("recguide_server", "Model, method and lossless guarantee in force")
        info.add_metric([], self._info)
        yield info

    def _gauges(self) -> Iterator[Metric]:
        engine, admission = self._engine, self._admission
        pages, size = engine.pages, engine.pages.page_size
        values: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("running", "Requests that hold a slot", lambda: len(engine.scheduler.running)),
            ("waiting", "Requests that wait for a slot", lambda: len(engine.scheduler.waiting)),
            ("active_answers", "Answers accepted and not ended", lambda: admission.active),
            ("queue_capacity", "Answers that may wait", lambda: admission.queue),
            ("slots", "Slots of the engine", lambda: engine.settings.slots),
            ("kv_tokens", "Tokens that the KV pool holds", lambda: pages.pages * size),
            ("kv_free_tokens", "Free tokens of the KV pool", lambda: pages.free_pages * size),
            ("draining", "1 while the server shuts down", lambda: admission.draining),
        )
        for name, text, read in values:
            yield GaugeMetricFamily(f"recguide_{name}", text, value=float(read()))

    def _counters(self) -> Iterator[Metric]:
        engine, counters = self._engine, self._engine.counters
        values = (
            ("queue_refused", "Requests refused with 429", self._admission.refused),
            ("preemptions", "Requests that gave their pages back", engine.scheduler.preemptions),
            ("engine_steps", "Forwards of the engine", counters.steps),
            ("engine_query_tokens", "Packed tokens of all forwards", counters.query_tokens),
            ("engine_seconds", "Wall time of steps", counters.step_seconds),
            ("planner_seconds", "Wall time of planning within them", counters.plan_seconds),
        )
        for name, text, value in values:
            yield CounterMetricFamily(f"recguide_{name}", text, value=float(value))
        kinds = CounterMetricFamily("recguide_forwards", "Forwards by kind", labels=["kind"])
        for kind, count in list(counters.by_kind.items()):
            kinds.add_metric([kind], count)
        yield kinds

    def _branch_outcomes(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "recguide_branches", "Branches by what became of them", labels=["kind", "outcome"]
        )
        for kind in (BranchKind.CORRECTION, BranchKind.CONTINUATION, BranchKind.POSITION):
            hits, offered = self._branches.hits[kind], self._branches.offered[kind]
            family.add_metric([kind.name.lower(), "hit"], hits)
            family.add_metric([kind.name.lower(), "miss"], max(0, offered - hits))
        yield family
