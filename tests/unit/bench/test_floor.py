"""The least time of a step, against hand-computed figures of NLD-8B."""

import pytest

from recguide_core.bench.floor import Peaks, StepMeans, floor_of
from recguide_core.policy.devices import MODELS

NLD = MODELS["nld-8b"]
PEAKS = Peaks("h200", 4.3e12, 0.785e15, "a test")


def floor(tokens, kv=0.0, emitted=0.0, ms=10.0, element=2):
    return floor_of(NLD, element, StepMeans(tokens, kv, emitted, ms), PEAKS)


def test_weights_are_read_once_a_forward():
    found = floor(1, emitted=1)
    assert found["bytes"] == pytest.approx(15.9e9, rel=0.01)
    assert found["ms"] == found["bytes_ms"] == pytest.approx(3.70, abs=0.01)
    assert found["achieved"] == pytest.approx(0.37, abs=0.001)
    assert found["bound"] == "bytes"
    assert floor(1, element=4)["bytes_ms"] == pytest.approx(2 * found["bytes_ms"])


def test_many_tokens_are_bound_by_what_they_compute():
    few, many = floor(16), floor(512)
    assert few["bound"] == "bytes"
    assert many["bound"] == "FLOPs"
    assert many["flops"] == pytest.approx(32 * few["flops"])
    assert many["ms"] == many["flops_ms"] > many["bytes_ms"] == few["bytes_ms"]


def test_a_prefix_is_read_once_and_the_head_computed_for_what_is_emitted():
    plain, long = floor(16), floor(16, kv=8 * 800)
    # 34 layers, 8 KV heads of 128, K and V, two bytes.
    assert long["bytes"] - plain["bytes"] == 8 * 800 * 34 * 8 * 128 * 2 * 2
    head = floor(16, emitted=10)["flops"] - plain["flops"]
    assert head == 10 * 2 * 4096 * 131072
