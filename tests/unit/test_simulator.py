"""The simulator: conservation, determinism, Little's law, schedules by hand, no torch."""

import subprocess
import sys

import numpy as np
import pytest

from recguide_core.engine.planners import ArPlanner, LinearPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner, TidarPlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.virtual import ScaledCost, VirtualClock
from recguide_core.errors import UsageError
from recguide_core.policy.host import HostTime
from recguide_core.simulator import SimSettings, named_clock
from recguide_core.simulator.core import SimulatedCore, Workload
from recguide_core.simulator.load import (
    poisson_arrivals,
    ramp_arrivals,
    run_arrivals,
    run_closed,
)
from recguide_core.simulator.prices import priced
from recguide_core.simulator.run import acceptance_of
from recguide_core.simulator.texts import FOREVER, Texts, draw_texts

TOKENS = 64


def drawn(count, seed=0, tokens=TOKENS, prompt=1):
    texts = draw_texts(acceptance_of("nld-8b")[0], count, tokens, seed)
    return Workload(texts, np.full(count, tokens), np.full(count, prompt))


def by_hand(left, tokens, risky=False):
    """A workload whose runs are written out: left[i][o]; margins safe unless `risky`."""
    shape = (len(left), tokens + 80)
    full = np.full(shape, FOREVER, np.int64)
    for i, row in enumerate(left):
        full[i, : len(row)] = row
    ones, none = np.ones(shape, np.float32), np.zeros(shape, bool)
    texts = Texts(
        category=np.zeros(len(left), np.int64),
        left=full,
        masked=np.full(shape, FOREVER),
        drafter=np.full(shape, FOREVER),
        entropy=ones * 0.1,
        margin_right=ones,
        margin_wrong=ones * (0.1 if risky else 1.0),
        margin_after=ones,
        fixed=~none,
        foreseen=~none,
    )
    return Workload(texts, np.full(len(left), tokens), np.ones(len(left), np.int64))


class PerToken:
    """One millisecond for a forward and one more for each query token."""

    def ms(self, shapes):
        return 1.0 + shapes.query_tokens.astype(np.float64)


def core_of(workload, planner, load, clock=None, batching="ragged", slots=0):
    return SimulatedCore(
        workload,
        planners=[planner],
        settings=EngineSettings(
            max_requests=load, max_admitted=slots, batching=batching, bucket_wait=4
        ),
        clock=clock or named_clock("b200/nld-8b", context=800),
    )


def run(workload, planner, load, **settings):
    core = core_of(workload, planner, load, **settings)
    return run_closed(core, workload, settings.get("slots") or load), core


@pytest.mark.parametrize(
    "planner", [ArPlanner(), LinearPlanner(8), OverlapPlanner(16), TidarPlanner(8)]
)
@pytest.mark.parametrize("load", [1, 5])
def test_tokens_requests_and_pages_are_conserved(planner, load):
    workload = drawn(12)
    timeline, core = run(workload, planner, load)
    assert (timeline.tokens == TOKENS).all()
    assert (timeline.round_tokens == TOKENS - 1).all()
    assert (timeline.arrival <= timeline.first).all() and (timeline.first <= timeline.end).all()
    assert timeline.end.max() == pytest.approx(timeline.seconds)
    assert core.pages.free_pages == core.pages.pages and core.idle
    if planner.name != "ar":
        # Serial or fused: a round costs two forwards unless its draft was reused.
        assert (timeline.forwards == 2 * timeline.rounds - timeline.reused).all()


def test_same_seed_same_run_and_other_seed_other_run():
    first, again = (run(drawn(10), LinearPlanner(16), 4)[0] for _ in range(2))
    assert (first.end == again.end).all() and first.steps == again.steps
    other, _ = run(drawn(10, seed=1), LinearPlanner(16), 4)
    assert (first.end != other.end).any()


def test_every_method_meets_the_same_text():
    workload = drawn(6)
    taus = {}
    for block in (4, 8, 16):
        timeline, _ = run(workload, LinearPlanner(block), 6)
        taus[block] = timeline.tau
    assert taus[4] < taus[8] < taus[16]


def test_identical_ar_steps_are_taken_in_one_go_without_a_trace():
    workload = drawn(9)
    fast, core = run(workload, ArPlanner(), 3)
    slow_core = core_of(workload, ArPlanner(), 3)
    slow_core.fast_forward = False
    slow = run_closed(slow_core, workload, 3)
    assert fast.end == pytest.approx(slow.end, rel=1e-9)
    assert (fast.forwards == slow.forwards).all() and fast.steps == slow.steps
    assert core.counters.by_kind == slow_core.counters.by_kind


def test_fast_forward_stops_for_arrivals():
    workload = drawn(8)
    moments = poisson_arrivals(20.0, 8, seed=2)
    runs = []
    for fast in (True, False):
        core = core_of(workload, ArPlanner(), 4)
        core.fast_forward = fast
        runs.append(run_arrivals(core, workload, moments))
    assert runs[0].end == pytest.approx(runs[1].end, rel=1e-9)


@pytest.mark.parametrize("arrivals", ["poisson", "ramp"])
def test_littles_law(arrivals):
    count = 60
    workload = drawn(count)
    if arrivals == "poisson":
        moments = poisson_arrivals(12.0, count, seed=1)
    else:
        moments = ramp_arrivals(4.0, 25.0, count, seed=1)
    core = core_of(workload, LinearPlanner(16), 8)
    timeline = run_arrivals(core, workload, moments)
    # Mean number in the system, integrated over time, against rate x mean residence.
    edges = np.concatenate([timeline.arrival, timeline.end])
    change = np.concatenate([np.ones(count), -np.ones(count)])
    order = np.argsort(edges, kind="stable")
    inside = np.cumsum(change[order])[:-1]
    horizon = timeline.end.max()
    mean_inside = float((inside * np.diff(edges[order])).sum() / horizon)
    residence = float((timeline.end - timeline.arrival).mean())
    assert mean_inside == pytest.approx(count / horizon * residence, rel=1e-6)
    assert timeline.arrival == pytest.approx(moments)


def test_two_requests_ragged_by_hand():
    # Runs of 2 and 4: with B = 4, request 0 accepts 2 a round, request 1 accepts 4.
    # Prompt pass: 2 tokens, 3 ms. Then draft 8 (9 ms), verify 8 (9 ms), alternating.
    # 9 tokens: the prompt pass gives 1; request 1 needs 2 rounds, request 0 needs 4.
    left = [[2, 1] * 8, [4, 3, 2, 1] * 4]
    timeline, _ = run(
        by_hand(left, 9), LinearPlanner(4), 2, clock=VirtualClock(PerToken(), name="test")
    )
    assert timeline.first == pytest.approx([0.003, 0.003])
    assert timeline.end[1] == pytest.approx(0.003 + 2 * 0.018)
    # Alone from there on: 2 rounds of 5 + 5 ms.
    assert timeline.end[0] == pytest.approx(0.003 + 2 * 0.018 + 2 * 0.010)
    assert timeline.rounds.tolist() == [4, 2] and timeline.forwards.tolist() == [8, 4]


class TwoSizes:
    """Request 0 drafts 2 tokens, request 1 drafts 4."""

    name, block_size, max_in_flight, first_draft = "two", None, 4, 0

    def plan(self, table, who, load):
        plan = LinearPlanner(4).plan(table, who, load)
        plan.block[:] = np.where(who == 0, 2, 4)
        return plan


def two_sizes(batching, padded=False):
    # Both always pass: 3 rounds of 2 for request 0, 3 rounds of 4 for request 1.
    workload = by_hand([[], []], 7)
    clock = VirtualClock(PerToken(), name="test", padded=padded)
    core = core_of(workload, TwoSizes(), 2, clock=clock, batching=batching)
    return run_closed(core, workload, 2)


def test_two_sizes_in_one_ragged_forward_by_hand():
    # Prompt 3; rounds of (2 + 4) tokens: 7 + 7 ms. Request 1 is done after 2 rounds (8 >= 6),
    # request 0 goes on alone with 3 + 3 ms.
    timeline = two_sizes("ragged")
    assert timeline.end * 1e3 == pytest.approx([3 + 28 + 6, 3 + 28])


def test_two_sizes_padded_by_hand():
    # As ragged, but both rows are charged as 4 tokens: 9 + 9 ms.
    timeline = two_sizes("ragged", padded=True)
    assert timeline.end * 1e3 == pytest.approx([3 + 36 + 6, 3 + 36])


def test_two_sizes_in_buckets_by_hand():
    # One size a forward: drafts and verifies of request 0 cost 3, of request 1 cost 5, and they
    # take turns; nobody waits more than `bucket_wait` forwards.
    timeline = two_sizes("bucketed")
    assert timeline.seconds * 1e3 == pytest.approx(3 + 3 * (3 + 3) + 2 * (5 + 5))
    assert timeline.forwards.tolist() == [6, 4]


def test_correction_branches_save_the_draft_forward_by_hand():
    # Runs of 2: the wrong token at slot 2 is risky and its replacement right, so every round
    # after the first is one fused forward: verify 4 + correction 4, and a continuation of 4.
    workload = by_hand([[2, 1] * 10], 9, risky=True)
    timeline, core = run(
        workload, OverlapPlanner(4), 1, clock=VirtualClock(PerToken(), name="test")
    )
    assert timeline.rounds[0] == 4 and timeline.reused[0] == 3
    assert timeline.forwards[0] == 2 * 4 - 3
    assert core.counters.by_kind["fused"] >= 3 and core.counters.by_kind["draft"] == 1


def test_cheaper_prices_never_lower_throughput():
    workload = drawn(12)
    cost = priced("b200", "nld-8b").cost
    speeds = []
    for factor in (1.0, 0.9, 0.5):
        clock = VirtualClock(ScaledCost(cost, factor), context=800)
        timeline, _ = run(workload, OverlapPlanner(16), 4, clock=clock)
        speeds.append(timeline.tps)
    assert speeds[0] < speeds[1] < speeds[2]
    assert speeds[2] == pytest.approx(2 * speeds[0], rel=1e-6)


def test_host_time_is_charged_per_step_and_request():
    workload = drawn(4)
    bare, _ = run(workload, LinearPlanner(8), 4)
    hosted, _ = run(
        workload, LinearPlanner(8), 4,
        clock=named_clock("b200/nld-8b", HostTime(step=2.0), context=800),
    )  # fmt: skip
    assert hosted.seconds - bare.seconds == pytest.approx(2e-3 * bare.steps)


def test_full_batch_and_whole_run_throughput_differ_by_the_tail():
    timeline, _ = run(drawn(20), LinearPlanner(16), 8)
    assert timeline.full_to < timeline.seconds
    assert timeline.steady_tps > timeline.tps


def test_bad_settings_are_refused():
    for bad in (
        {"model": "nld-3b"},
        {"gpu": "b300"},
        {"methods": ("speed",)},
        {"batching": "magic"},
        {"concurrency": (0,)},
        {"requests": 0},
        {"rate": -1.0},
        {"ramp": 3.0},
        {"block_sizes": (64,)},
    ):
        with pytest.raises(UsageError):
            SimSettings(**bad)
    with pytest.raises(UsageError, match="is no clock"):
        named_clock("b200")
    with pytest.raises(UsageError, match="ascending"):
        run_arrivals(core_of(drawn(2), ArPlanner(), 1), drawn(2), np.array([2.0, 1.0]))
    with pytest.raises(UsageError, match="above 0"):
        poisson_arrivals(0.0, 3, 0)


def test_no_torch_is_imported():
    code = (
        "import sys; from recguide_core.simulator import SimSettings, simulate;"
        "simulate(SimSettings(methods=('linear', 'recguide'), concurrency=(2,), requests=4,"
        "max_tokens=32, workers=1)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
