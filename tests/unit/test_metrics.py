"""Every metric against hand-computed values, and the cases where it has none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core import metrics


def test_every_metric_has_unit_and_formula():
    for name, metric in metrics.METRICS.items():
        assert metric.name == name
        assert metric.unit and metric.formula


def test_serial_rounds_have_tau_equal_to_mean_accepted_length():
    # Three rounds of 4, 7 and 1 tokens, two forwards each.
    assert metrics.tau(12, 6) == 4.0
    assert metrics.accepted_length(12, 3) == 4.0
    assert metrics.tpf(12, 6) == 2.0


def test_plain_ar_has_one_token_per_forward():
    assert metrics.tau(10, 10) == 2.0
    assert metrics.tpf(10, 10) == 1.0


@given(st.integers(1, 500), st.data())
def test_overlap_identity_of_tau_and_reuse(rounds, data):
    # With h of the rounds reused, forwards = (2 - h) rounds, so tau = 2 A / (2 - h).
    reused = data.draw(st.integers(0, rounds))
    tokens = data.draw(st.integers(rounds, 16 * rounds))
    h = metrics.reuse(reused, rounds)
    a = metrics.accepted_length(tokens, rounds)
    assert metrics.tau(tokens, 2 * rounds - reused) == pytest.approx(2 * a / (2 - h))


def test_prefill_counts_in_one_tpf_only():
    assert metrics.tpf(245, 60) == pytest.approx(4.0833, abs=1e-4)
    assert metrics.tpf_with_prefill(246, 60, 2) == pytest.approx(3.9677, abs=1e-4)


@pytest.mark.parametrize("metric", [metrics.tau, metrics.tpf, metrics.accepted_length])
def test_nothing_to_divide_by_is_none(metric):
    assert metric(0, 0) is None


def test_tpot_needs_two_tokens():
    assert metrics.tpot_ms(1.0, 1.0, 1) is None
    assert metrics.tpot_ms(1.0, 1.6, 4) == pytest.approx(200.0)


def test_chunk_and_token_latency_differ_for_the_same_stream():
    times, counts = [0.0, 0.1, 0.4], [1, 2, 3]
    assert metrics.chunk_gaps_ms(times) == pytest.approx([100, 300])
    assert metrics.token_gaps_ms(times, counts) == pytest.approx([50, 50, 100, 100, 100])


@given(st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 32)), min_size=2, max_size=30))
def test_token_gaps_add_up_to_the_stream(chunks):
    times = np.cumsum([gap for gap, _ in chunks])
    gaps = metrics.token_gaps_ms(times, [count for _, count in chunks])
    assert gaps.sum() == pytest.approx(1e3 * (times[-1] - times[0]))


def test_steady_window_opens_full_and_shuts_with_the_last_arrival():
    arrivals, firsts = [0.0, 0.0, 2.0, 5.0], [0.5, 0.7, 2.2, 5.1]
    assert metrics.steady_window(arrivals, firsts, 2) == (0.7, 5.0)


def test_no_steady_window_when_nothing_was_refilled():
    assert metrics.steady_window([0.0, 0.0], [0.5, 0.7], 2) is None
    assert metrics.steady_window([0.0], [0.5], 2) is None


def test_tokens_inside_a_window():
    times, counts = np.array([0.5, 1.0, 1.5, 2.0]), np.array([1, 2, 4, 8])
    assert metrics.tokens_between(times, counts, (0.5, 1.5)) == 6


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((None, None), True), ((100, None), True), ((90, None), False), ((100, 9), False)],
)
def test_limits(limits, expected):
    assert metrics.within_limits(95.0, 10.0, *limits) is expected


def test_the_share_of_many_steps_leaves_out_disturbed_ones():
    steps = np.full(20, 1.0)
    replays = np.full(20, 0.9)
    steps[3], replays[7] = 9.0, 4.0
    assert metrics.host_share_of(steps, replays) == pytest.approx(0.1), "both ends are cut"
    assert metrics.host_share_of([2.0, 8.0], [1.0, 6.0]) == pytest.approx(0.3), "weighed by time"
    assert metrics.host_share_of([], []) is None


def test_host_share():
    assert metrics.host_share(1.0, 0.9) == pytest.approx(0.1)
    assert metrics.host_share(0.0, 0.0) is None


def test_summary_of_nothing_is_null_with_a_count():
    assert metrics.summary([]) == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    assert metrics.summary([1.0, float("nan"), 3.0])["mean"] == 2.0
