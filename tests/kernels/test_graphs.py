"""Graph keys, lazy capture, the memory cap and the reasons for eager forwards."""

from __future__ import annotations

from recguide_core.kernels import launch
from recguide_core.kernels.graphs import FIRST, GraphCache, GraphKey


class FakeDevice:
    """Captures by remembering the callable; each graph takes `size` bytes."""

    def __init__(self, size: int = 10, broken: bool = False) -> None:
        self.size, self.broken = size, broken
        self.used = 0
        self.captures = 0

    def warm(self, forward) -> None:
        forward()

    def capture(self, forward):
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.captures += 1
        self.used += self.size
        return forward

    def cache(self, cap: int = 1000) -> GraphCache:
        return GraphCache(self, cap, lambda: self.used)


def test_keys_are_the_smallest_buckets() -> None:
    assert GraphKey.of(1, 1) == GraphKey(1, 1)
    assert GraphKey.of(17, 3) == GraphKey(32, 4)
    assert GraphKey.of(64, 1) == GraphKey(64, 1)
    assert GraphKey.of(4096, 256) == GraphKey(4096, 256)
    assert GraphKey.of(4097, 1) is None
    assert GraphKey.of(5, 257) is None


def test_buckets_grow_and_waste_little() -> None:
    for buckets in (launch.TOKEN_BUCKETS, launch.REQUEST_BUCKETS):
        assert list(buckets) == sorted(set(buckets))
    for tokens in range(16, launch.TOKEN_BUCKETS[-1] + 1):
        key = GraphKey.of(tokens, 1)
        assert tokens <= key.tokens <= max(tokens + 15, tokens * 1.125)


def test_capture_is_lazy_and_keyed() -> None:
    device, ran = FakeDevice(), []
    cache = device.cache()
    for _ in range(3):
        cache.run(GraphKey(16, 1), lambda: ran.append("a"))
        cache.run(GraphKey(32, 1), lambda: ran.append("b"))
    assert device.captures == 2
    assert ran == ["a", "b"] * 3
    assert (cache.report.replays, cache.report.eager) == (4, 2)
    assert cache.report.reasons == {FIRST: 2}
    assert cache.report.captured == [GraphKey(16, 1), GraphKey(32, 1)]


def test_the_cap_stops_capturing() -> None:
    device, ran = FakeDevice(size=600), []
    cache = device.cache(cap=1000)
    for tokens in (16, 32, 48):
        cache.run(GraphKey(tokens, 1), lambda t=tokens: ran.append(t))
    assert ran == [16, 32, 48]
    assert device.captures == 2
    assert cache.report.bytes == 1200
    assert cache.report.reasons == {FIRST: 2, "graphs hold their cap of 0 MiB": 1}


def test_a_failed_capture_is_not_tried_again() -> None:
    device, ran = FakeDevice(broken=True), []
    cache = device.cache()
    for _ in range(3):
        cache.run(GraphKey(16, 1), lambda: ran.append(1))
    assert ran == [1, 1, 1], "every run counts once, that of the failed capture too"
    reason = "capture failed: operation not permitted when stream is capturing"
    assert cache.report.reasons == {FIRST: 1, reason: 2}


def test_without_graphs_every_forward_says_why() -> None:
    cache = GraphCache(None, 0, lambda: 0, "graphs are switched off")
    cache.run(GraphKey(16, 1), lambda: None)
    assert cache.report.reasons == {"graphs are switched off": 1}
