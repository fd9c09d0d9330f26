"""Host time: a fit gets back what made the table, and explains the public serving table."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.policy.cost import VERIFY, Shapes
from recguide_core.policy.host import HostTime, fit_host
from recguide_core.simulator.prices import SERVING_HOST, priced

SERVING = Path(__file__).parent.parent / "fixtures" / "nld-14b-native-serving-b200.csv"
SETS = ("gsm8k", "math-500", "ifeval", "gpqa", "livecodebench-cpp")


@settings(deadline=None)
@given(st.floats(0.5, 10.0), st.floats(0.01, 1.0))
def test_fit_recovers_the_host_time_behind_a_table(step, request):
    c = np.array([1, 2, 8, 32, 128])
    forward = 5.0 + 0.2 * c
    tps = c * 4.0 / (forward + HostTime(step, request).ms(c)) * 1e3
    found = fit_host(c, np.full(5, 4.0), tps, forward)
    assert found.host.step == pytest.approx(step, rel=1e-6)
    assert found.host.request == pytest.approx(request, rel=1e-6)
    assert found.worst < 1e-6


def test_serving_table_is_reproduced():
    rows = [r for r in csv.DictReader(SERVING.open()) if r["benchmark"] in SETS]
    rows = [r for r in rows if int(r["requests"]) >= 4 * int(r["concurrency"])]
    c, b = (np.array([int(r[k]) for r in rows]) for k in ("concurrency", "block_size"))
    zeros = np.zeros(len(c), np.int64)
    shapes = Shapes(zeros + VERIFY, c, c * b, 800 * c, b, zeros)
    found = fit_host(
        c,
        [float(r["tpf_returned"]) for r in rows],
        [float(r["system_tps"]) for r in rows],
        priced("b200", "nld-14b").cost.ms(shapes),
    )
    assert len(rows) == 36
    assert found.median < 0.07 and found.worst < 0.18
    assert SERVING_HOST.step == pytest.approx(found.host.step, rel=0.01)
    assert SERVING_HOST.request == pytest.approx(found.host.request, rel=0.01)
