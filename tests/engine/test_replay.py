"""The simulator makes the engine's decisions: replayed runs, and one policy for both."""

from dataclasses import replace

import numpy as np
import pytest
from harness import demo_prompts

from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError
from recguide_core.pages import PageTable
from recguide_core.records import Request
from recguide_core.simulator import SimCell, SimSettings, named_clock
from recguide_core.simulator.guide import guidance
from recguide_core.simulator.prices import priced
from recguide_core.simulator.replay import Recorder, replay_core, serve
from recguide_core.simulator.run import learned, simulate_cell

LOAD, TOKENS = 3, 80


def guide():
    menu = (1, 4, 8, 16, 32)
    return guidance(learned("nld-8b", menu), priced("b200", "nld-8b").cost, {LOAD: 0.4}, menu=menu)


def requests(tiny):
    return [
        Request(f"r{i}", np.asarray(p, np.int64), TOKENS)
        for i, p in enumerate(demo_prompts(tiny, 6))
    ]


def record(tiny, planner, batching):
    engine = Engine(
        tiny,
        planners=[planner],
        settings=EngineSettings(max_requests=LOAD, batching=batching),
        clock=named_clock("b200/nld-8b"),
    )
    recorder = Recorder()
    seconds = serve(engine, requests(tiny), LOAD, recorder)
    return engine, recorder.recording, seconds


def replay(tiny, engine, recording, planner, batching):
    core = replay_core(
        recording,
        planners=[planner],
        settings=EngineSettings(max_requests=LOAD, batching=batching),
        clock=named_clock("b200/nld-8b"),
        pages=PageTable(engine.pages.pages, engine.pages.page_size),
        context=engine.context,
        mask_id=engine.mask_id,
        eos_ids=engine.eos_ids,
    )
    recorder = Recorder()
    seconds = serve(core, requests(tiny), LOAD, recorder)
    return core, recorder.recording, seconds


@pytest.mark.parametrize(
    ("method", "batching"),
    [("linear", "ragged"), ("overlap", "ragged"), ("tidar", "ragged"), ("recguide", "ragged"),
     ("adaptive", "bucketed")],
)  # fmt: skip
def test_a_replayed_run_makes_every_decision_alike(tiny, method, batching):
    def planner():
        return make_planner(method, block=8, guidance=guide(), batching=batching)

    engine, recorded, seconds = record(tiny, planner(), batching)
    core, replayed, again = replay(tiny, engine, recorded, planner(), batching)
    assert sum(len(rounds) for rounds in recorded.rounds.values()) > 20
    assert replayed.decisions() == recorded.decisions()
    assert core.counters.by_kind == engine.counters.by_kind
    # The bar is 3 % of throughput; equal decisions give equal time.
    assert again == pytest.approx(seconds, rel=1e-9)


def test_another_decision_is_noticed(tiny):
    engine, recorded, _ = record(tiny, make_planner("linear", block=8), "ragged")
    for other in (make_planner("linear", block=4), make_planner("overlap", block=8)):
        with pytest.raises(DataError, match="decided otherwise"):
            replay(tiny, engine, recorded, other, "ragged")


def test_patching_one_policy_function_changes_engine_and_simulator(tiny, monkeypatch):
    from recguide_core.engine import planners_overlap

    settings = SimSettings(methods=("overlap",), concurrency=(1,), requests=4, max_tokens=64)
    cell = SimCell("overlap", 16, 1)

    def reuse():
        _, recorded, _ = record(tiny, make_planner("overlap", block=8), "ragged")
        rounds = [r for rounds in recorded.rounds.values() for r in rounds]
        simulated = simulate_cell(settings, cell).timeline.reuse
        return sum(r.hit >= 0 for r in rounds), simulated

    engine_before, simulated_before = reuse()
    assert engine_before > 0 and simulated_before > 0
    propose = planners_overlap.propose

    def nothing(*args, **kwargs):
        proposal = propose(*args, **kwargs)
        return replace(proposal, used=np.zeros_like(proposal.used))

    monkeypatch.setattr(planners_overlap, "propose", nothing)
    assert reuse() == (0, 0.0)
