"""The virtual clock: prices add up, never run backwards, and name how they are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.engine.virtual import VirtualClock
from recguide_core.policy.cost import InterpolatedCost, Shapes
from recguide_core.policy.host import HostTime
from recguide_core.records import StepShape
from recguide_core.simulator import named_clock
from recguide_core.simulator.prices import priced

TABLE = {
    "kind": ["verify"] * 4,
    "requests": [1, 1, 4, 4],
    "query_tokens": [8, 16, 32, 64],
    "kv_tokens": [0, 0, 0, 0],
    "mean_ms": [1.0, 2.0, 3.0, 4.0],
}


def shape(kind="verify", requests=2, tokens=32, kv=1000, block=16, branches=0):
    return StepShape(kind, requests, tokens, kv, block, branches)


kinds = st.sampled_from(["prefill", "ar", "draft", "verify", "fused", "mixed", "drafter"])
shapes = st.builds(
    lambda kind, n, width, kv, branches: shape(kind, n, n * width, kv, width, branches),
    kinds, st.integers(1, 128), st.integers(1, 64), st.integers(0, 10**6), st.integers(0, 8),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(shapes, min_size=1, max_size=12))
def test_time_only_moves_forward(steps):
    clock = named_clock("b200/nld-8b")
    last = clock.now()
    for step in steps:
        clock.charge(step)
        assert clock.now() > last
        last = clock.now()
    assert sum(clock.origins.values()) == len(steps)


@settings(deadline=None)
@given(shapes.filter(lambda s: s.kind != "drafter"))
def test_a_step_costs_what_the_model_says(step):
    clock = named_clock("b200/nld-14b")
    clock.charge(step)
    ms = priced("b200", "nld-14b").cost.ms(Shapes.of([step]))[0]
    assert clock.now() == pytest.approx(ms / 1e3)


def test_many_steps_are_the_sum_of_single_ones():
    one, many = named_clock("b200/nld-8b", context=100), named_clock("b200/nld-8b", context=100)
    for i in range(20):
        one.charge(shape("ar", 4, 4, 1000 + 4 * i, 1))
    many.charge_many(shape("ar", 4, 4, 1000, 1), 20, 4)
    assert many.now() == pytest.approx(one.now())
    assert many.origins == one.origins


def test_interpolated_tables_are_charged_too():
    clock = VirtualClock(InterpolatedCost(TABLE), name="cpu")
    clock.charge(shape("verify", 4, 48, 0))
    assert clock.now() == pytest.approx(3.5e-3)
    assert clock.origins == {"interpolated": 1}


def test_host_context_drafter_and_padding():
    bare = VirtualClock(InterpolatedCost(TABLE))
    bare.charge(shape("verify", 4, 32, 0))
    hosted = VirtualClock(InterpolatedCost(TABLE), HostTime(step=1.0, request=0.5))
    hosted.charge(shape("verify", 4, 32, 0))
    assert hosted.now() - bare.now() == pytest.approx(3e-3)
    hosted.charge(shape("drafter", 4, 32, 0))
    assert hosted.now() == pytest.approx(2 * bare.now() + 3e-3)
    padded = VirtualClock(InterpolatedCost(TABLE), padded=True)
    padded.charge(shape("verify", 4, 40, 0, block=16))
    assert padded.now() == pytest.approx(4e-3)
    far, near = named_clock("b200/nld-8b", context=800), named_clock("b200/nld-8b")
    for clock, kv in ((far, 0), (near, 1600)):
        clock.charge(shape(kv=kv))
    assert far.now() == pytest.approx(near.now())


def test_waiting_only_moves_forward():
    clock = named_clock("h100/nld-8b")
    clock.wait_until(1.5)
    clock.wait_until(0.5)
    assert clock.now() == 1.5
    clock.charge(shape())
    assert clock.origins == {"modelled": 1}


def test_a_drafter_is_much_cheaper_than_its_target():
    prices = priced("b200", "nld-8b")
    step = Shapes.of([shape("draft", 8, 128, 6400)])
    ratio = prices.drafter.ms(step) / prices.cost.ms(step)
    assert np.all(ratio < 0.3) and np.all(ratio > 0.05)
