"""How an engine's steps run: the back end, replayed graphs, and every fallback with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from recguide_core.engine.backend import Execution


def execution_metrics(execution: Execution | None) -> Iterator[Metric]:
    """Families of one engine; none where the engine has no back ends to choose from."""
    if execution is None:
        return
    info = InfoMetricFamily("recguide_attention_backend", "Back end in use, and why not the others")
    reasons = {f"not_{name}": reason for name, reason in execution.choice.reasons.items()}
    # A kernel path that failed its self-test is not run; the torch runner serves instead.
    faults = {"self_test": "; ".join(execution.faults)} if execution.faults else {}
    if execution.graphs is not None and execution.graphs.report.not_resident:
        faults["not_resident"] = execution.graphs.report.not_resident
    used = "torch" if execution.faults else execution.choice.name
    info.add_metric([], {"backend": used, **reasons, **faults})
    yield info
    if execution.graphs is None:
        return
    report = execution.graphs.report
    eager = CounterMetricFamily(
        "recguide_eager_forwards", "Forwards outside a graph, by reason", labels=["reason"]
    )
    for reason, count in list(report.reasons.items()):
        eager.add_metric([reason], count)
    yield eager
    yield CounterMetricFamily(
        "recguide_graph_replays", "Forwards that replayed a graph", value=float(report.replays)
    )
    yield CounterMetricFamily(
        "recguide_reread_steps",
        "Steps of which some rows were read out again by torch (sampling, bias, logprobs)",
        value=float(report.reread),
    )
    yield CounterMetricFamily(
        "recguide_resident_rounds",
        "Rounds that ran wholly on the device, handed out beside the next one",
        value=float(report.resident),
    )
    host = CounterMetricFamily(
        "recguide_host_steps",
        "Steps with decoding requests that the host built and settled instead, by reason",
        labels=["reason"],
    )
    for reason, count in list(report.host.items()):
        host.add_metric([reason], count)
    yield host
    yield GaugeMetricFamily("recguide_graphs", "Captured graphs", value=float(len(report.captured)))
    yield GaugeMetricFamily(
        "recguide_graph_bytes", "Memory that captured graphs hold", value=float(report.bytes)
    )
