"""Recorded traces as workloads: a trace of known texts gives those texts back."""

import numpy as np
import pytest

from recguide_core.engine.planners import LinearPlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError
from recguide_core.simulator import SimSettings, named_clock, simulate
from recguide_core.simulator.core import SimulatedCore, Workload
from recguide_core.simulator.load import run_closed
from recguide_core.simulator.recorded import recorded_workload
from recguide_core.simulator.run import acceptance_of
from recguide_core.simulator.texts import draw_texts
from recguide_core.tables import make_table, write_table

MENU = (1, 4, 8, 16, 32)
TOKENS, PROMPT = 160, 20
ABOUT = {
    "model": "drawn", "model_hash": "d" * 64, "device": "cpu-any", "date": "2026-11-29",
    "source": "test", "data": "drawn", "seed": "0",
}  # fmt: skip


def trace_of(texts, seed=0):
    """What calibration would write of these texts, with random committed blocks."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(len(texts)):
        at, number = 0, 0
        while at < TOKENS:
            chosen = int(rng.choice([8, 16, 32]))
            left = int(texts.left[i, at])
            for block in MENU:
                accepted = min(left, block)
                end = at + accepted
                slots = at + np.arange(1, block)
                wrong = left if left < block else -1
                margin = np.where(
                    np.arange(1, block) < left, texts.margin_right[i, slots],
                    np.where(np.arange(1, block) == left, texts.margin_wrong[i, slots],
                             texts.margin_after[i, slots]),
                )  # fmt: skip
                risky = (np.flatnonzero(margin < 0.9) + 1).tolist()
                rows.append({
                    "data": "drawn", "request": f"r{i}", "round": number, "block_size": block,
                    "chosen": block == chosen, "committed": PROMPT + at, "accepted": accepted,
                    "matched": accepted - 1, "full": wrong < 0, "eos": False,
                    "reject_position": wrong, "margin": margin, "confidence": margin,
                    "entropy": [float(texts.entropy[i, end])] * max(min(accepted, block - 1), 1),
                    "risky": risky, "top1": risky,
                    "top2": [100 + r if texts.fixed[i, at + r] else 0 for r in risky],
                    "verdict": 100 + wrong if wrong > 0 else -1,
                    "branch": "hit" if wrong < 0 and texts.foreseen[i, end] else "miss",
                })  # fmt: skip
            at, number = at + min(left, chosen), number + 1
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return make_table("trace", columns, ABOUT)


@pytest.fixture(scope="module")
def texts():
    return draw_texts(acceptance_of("nld-8b")[0], 8, TOKENS + 64, 5)


@pytest.fixture(scope="module")
def trace(texts):
    return trace_of(texts)


def speed(workload, planner):
    core = SimulatedCore(
        workload,
        planners=[planner],
        settings=EngineSettings(max_requests=2),
        clock=named_clock("b200/nld-8b"),
    )
    return run_closed(core, workload, 2)


def test_the_texts_come_back(texts, trace):
    workload = recorded_workload(trace)
    assert len(workload) == len(texts)
    assert (workload.prompt_tokens == PROMPT).all()
    assert (workload.max_tokens > TOKENS).all()
    found = workload.texts
    # A spot that lies exactly one largest block behind a start leaves no mark: the block was full.
    same = np.minimum(found.left, 32)[:, :TOKENS] == np.minimum(texts.left, 32)[:, :TOKENS]
    starts = np.asarray(trace.columns["committed"])[np.asarray(trace.columns["chosen"])] - PROMPT
    owner = np.asarray(trace.columns["request"])[np.asarray(trace.columns["chosen"])]
    rows = np.array([int(name[1:]) for name in owner])
    assert same[rows, starts].all() and same.mean() > 0.95
    wrong = (texts.left == 1)[:, :TOKENS]
    at = tuple(index + (i == 1) for i, index in enumerate(np.nonzero(wrong)))
    seen = (at[1] < TOKENS) & (texts.margin_wrong[at] < 0.9)
    assert (found.fixed[at][seen] == texts.fixed[at][seen]).all()


def test_a_recorded_workload_runs_like_its_texts(texts, trace):
    recorded = recorded_workload(trace)
    original = Workload(texts, recorded.max_tokens, recorded.prompt_tokens)
    for block in (4, 16, 32):
        ours, theirs = (speed(w, LinearPlanner(block)) for w in (recorded, original))
        assert ours.rounds.sum() == pytest.approx(theirs.rounds.sum(), rel=0.02)
        assert ours.seconds == pytest.approx(theirs.seconds, rel=0.02)


def test_requests_repeat_when_more_are_asked_for(trace):
    workload = recorded_workload(trace)
    many = workload.take(20)
    assert len(many) == 20 and many.max_tokens[8] == workload.max_tokens[0]


def test_simulate_takes_a_trace(trace, tmp_path):
    path = tmp_path / "t.trace.arrow"
    write_table(path, trace)
    record = simulate(
        SimSettings(
            methods=("linear", "overlap", "recguide"), concurrency=(2,), requests=8, workers=1,
            traces=str(path),
        )
    )  # fmt: skip
    rows = {row["method"]: row for row in record["rows"]}
    assert rows["overlap"]["reuse"] > 0.2
    assert rows["recguide"]["output_tokens"] == rows["linear"]["output_tokens"]


def test_a_trace_without_its_largest_block_is_refused(trace):
    keep = ~(
        (np.asarray(trace.columns["block_size"]) == 32)
        & (np.asarray(trace.columns["request"]) == "r1")
    )
    columns = {
        name: [v for v, k in zip(values, keep, strict=True) if k]
        for name, values in trace.columns.items()
    }
    with pytest.raises(DataError, match="has no round of B = 32"):
        recorded_workload(make_table("trace", columns, ABOUT))
