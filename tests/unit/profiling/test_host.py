"""The host's part of a step: measured on a clock of our own, and read back from the table."""

import itertools
from functools import partial

import numpy as np
import pytest

from recguide_core.engine.host_memory import keep_freed_memory
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError
from recguide_core.model.registry import load_model
from recguide_core.policy.cost import VERIFY, Shapes
from recguide_core.policy.host import HostTime
from recguide_core.profiling.grid import Point
from recguide_core.profiling.host import fit_loads, measure_host
from recguide_core.profiling.run import columns_of
from recguide_core.tables import make_table, provenance
from recguide_core.tuning.costs import cost_model, host_time


def cost_table(**more: str):
    points = [Point("verify", requests, 8, 0) for requests in (1, 8)]
    columns = columns_of(points, [[2.0], [9.0]])
    about = provenance(
        "m", "h", "cpu-any", "test", dtype="x", attention="x", graph="x", seed="0", **more
    )
    return make_table("cost", columns, about)


def test_a_clock_that_only_the_host_moves_gives_its_time():
    """Every look at the clock takes a second: two of a step's looks are the executor's."""
    ticks = itertools.count()
    found = measure_host(load_model("nld-tiny"), [1, 2], lambda: float(next(ticks)), steps=4)
    # Begin, into the executor, out of it, end: 3 s between the outer ones, 1 s between the inner.
    assert found.step == pytest.approx(2000.0)
    assert found.request == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("context", [2, 9, 40])
def test_a_short_context_is_measured_or_left_out(context, monkeypatch):
    """It ends: where answers are over before all prompts are read, nothing can be said."""
    from recguide_core.profiling import host

    monkeypatch.setattr(host, "EngineSettings", partial(EngineSettings, context=context))
    ticks = itertools.count()
    found = measure_host(load_model("nld-tiny"), [1, 16], lambda: float(next(ticks)), steps=3)
    assert 0.0 <= found.step <= 2000.0 and 0.0 <= found.request <= 2000.0


@pytest.mark.parametrize(
    ("loads", "host_ms", "step", "request_"),
    [
        ([1, 8, 32], [0.6, 1.3, 3.7], 0.5, 0.1),
        ([1], [3.0], 3.0, 0.0),
        ([1, 8], [2.0, 1.0], 1.5, 0.0),
        ([1, 10], [0.0, 3.0], 0.0, 30 / 101),
    ],
)
def test_step_and_request_are_told_apart_and_never_negative(loads, host_ms, step, request_):
    found = fit_loads(loads, host_ms)
    assert (found.step, found.request) == pytest.approx((step, request_))


def test_steps_are_priced_with_the_host_where_the_table_names_it():
    shapes = Shapes.uniform(VERIFY, [1, 8], 8, 0)
    assert cost_model(cost_table()).ms(shapes) == pytest.approx([2.0, 9.0])
    named = cost_table(host_step_ms="0.5", host_request_ms="0.25")
    assert host_time(named) == HostTime(0.5, 0.25)
    assert cost_model(named).ms(shapes) == pytest.approx([2.75, 11.5])
    assert np.isfinite(cost_model(named).ms(shapes)).all()


@pytest.mark.parametrize("said", ["fast", "-1", "nan", "inf"])
def test_a_host_time_that_is_none_is_refused(said):
    with pytest.raises(DataError, match="host_step_ms"):
        cost_model(cost_table(host_step_ms=said))


@pytest.fixture
def asked_anew():
    keep_freed_memory.cache_clear()
    yield
    keep_freed_memory.cache_clear()


def test_freed_memory_is_kept_where_the_c_library_can_be_asked(monkeypatch, asked_anew):
    import ctypes

    asked = []

    class Libc:
        def mallopt(self, option, value):
            asked.append((option, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc())
    assert keep_freed_memory() and keep_freed_memory()
    assert asked == [(-1, 256 << 20), (-3, 32 << 20)]
    keep_freed_memory.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
