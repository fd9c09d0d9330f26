"""The back end in use and every fallback show in the metrics."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from recguide_core.kernels.backends import Target, choose
from recguide_core.kernels.graphs import GraphCache
from recguide_core.serving.execution_metrics import execution_metrics

TORCH = choose(Target("cpu", "float32", 64, 2, 16))


class Families:
    def __init__(self, execution) -> None:
        self.execution = execution

    def collect(self):
        return execution_metrics(self.execution)


def text(execution) -> str:
    registry = CollectorRegistry()
    registry.register(Families(execution))
    return generate_latest(registry).decode()


def test_no_back_ends_no_metrics() -> None:
    assert text(None) == ""


def test_the_back_end_and_why_not_the_others() -> None:
    shown = text(SimpleNamespace(choice=TORCH, graphs=None, faults=[]))
    assert 'backend="torch"' in shown
    assert 'not_triton="needs a CUDA device"' in shown
    assert "recguide_eager_forwards" not in shown


@pytest.mark.parametrize("faults", [[], ["a replay ignores its inputs"]])
def test_every_eager_forward_has_its_reason(faults) -> None:
    graphs = GraphCache(None, 0, lambda: 0)
    for _ in range(3):
        graphs.run_eager(lambda: None, "prompt chunk")
    graphs.report.replays, graphs.report.reread = 40, 5
    graphs.report.resident, graphs.report.not_resident = 30, ""
    graphs.report.on_host("log-probabilities")
    choice = SimpleNamespace(name="triton", reasons={"flashinfer": "not chosen"})
    shown = text(SimpleNamespace(choice=choice, graphs=graphs, faults=faults))
    assert 'recguide_eager_forwards_total{reason="prompt chunk"} 3.0' in shown
    assert "recguide_graph_replays_total 40.0" in shown
    assert "recguide_reread_steps_total 5.0" in shown
    assert ('backend="torch"' if faults else 'backend="triton"') in shown
    assert bool(faults) == ("a replay ignores its inputs" in shown)
    assert "recguide_resident_rounds_total 30.0" in shown
    assert 'recguide_host_steps_total{reason="log-probabilities"} 1.0' in shown
    assert "not_resident" not in shown


def test_why_no_round_runs_on_the_device_alone() -> None:
    graphs = GraphCache(None, 0, lambda: 0)
    graphs.report.not_resident = "a second model drafts"
    shown = text(SimpleNamespace(choice=TORCH, graphs=graphs, faults=[]))
    assert 'not_resident="a second model drafts"' in shown
