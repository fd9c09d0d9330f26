"""The device-resident loop under faults: replays, failing rounds, bad logits, no loop at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import FakeCapture
from resident_engines import METHODS, engine_for, history, pair, same, submit

from recguide_core.engine.engine import Engine
from recguide_core.engine.resident_build import resident_loop
from recguide_core.engine.settings import EngineSettings
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.resident_probe import self_test
from recguide_core.model.registry import load_model
from recguide_core.records import Act, Finish


@pytest.fixture(scope="module")
def model():
    return load_model("nld-tiny")


@pytest.mark.parametrize("method", ["linear", "overlap", "recguide"])
def test_replayed_rounds_move_the_state_once(model, method) -> None:
    def drive(engine):
        for i in range(3):
            submit(engine, model, i)
        return engine.run()

    host, resident = pair(model, [METHODS[method]])
    cache = GraphCache(FakeCapture(), 1 << 30, lambda: 0)
    resident.resident.rounds.graphs = cache
    same(host, resident, drive)
    assert cache.report.replays > 0
    assert set(cache.report.reasons) == {"first of its shape"}


@pytest.mark.parametrize("method", ["linear", "overlap", "recguide"])
@pytest.mark.parametrize("broken", ["launch", "collect"])
def test_a_fault_loses_nothing(model, method, broken) -> None:
    """A round that fails is reported once, and runs again."""
    host, resident = pair(model, [METHODS[method]])
    for engine in (host, resident):
        for i in range(3):
            submit(engine, model, i)
    rounds, real, calls = resident.resident.rounds, {}, []
    real = getattr(rounds, broken)

    def sometimes(*args, **options):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("device lost")
        return real(*args, **options)

    setattr(rounds, broken, sometimes)
    events, faults = [], 0
    while not resident.idle:
        try:
            events += resident.step()
        except RuntimeError:
            faults += 1
    assert faults == 1
    want, got = history(host.run()), history(events)
    for key in want:
        assert got[key][-1][-1][1] == want[key][-1][-1][1]
    resident.pool.check_integrity()
    assert resident.pool.free_pages == resident.pool.pages


def test_the_self_test_sees_a_wrong_replay(model) -> None:
    """Rounds that fail it leave the engine its host loop, and say so."""
    engine = engine_for(model, [METHODS["linear"]()], True)
    rounds = engine.resident.rounds
    rounds.graphs = GraphCache(FakeCapture(), 1 << 30, lambda: 0)
    assert self_test(rounds) == []
    rounds.graphs = GraphCache(FakeCapture(lambda forward: lambda: None), 1 << 30, lambda: 0)
    assert self_test(rounds) == ["a replayed round ignores its inputs"]

    def off_by_a_little(forward):
        def replay() -> None:
            forward()
            rounds._down[rounds._stats_at(8) :].view(torch.float32)[0] += 1e-3

        return replay

    rounds.graphs = GraphCache(FakeCapture(off_by_a_little), 1 << 30, lambda: 0)
    assert self_test(rounds) == ["a replayed round differs from the eager one"]


def test_when_there_is_no_resident_loop(model) -> None:
    """Off, a second model that drafts, or a back end without graphs."""
    engine = engine_for(model, [METHODS["linear"]()], True)
    assert engine.execution.graphs.report.not_resident == ""
    report = engine.execution.graphs.report
    assert resident_loop(engine, replace(engine.execution, resident=None)) is None
    assert report.not_resident == "switched off"
    engine.executor = object()
    assert resident_loop(engine, engine.execution) is None
    assert report.not_resident == "a second model drafts"
    assert engine_for(model, [METHODS["linear"]()], False).resident is None
    plain = Engine(model, planners=[METHODS["linear"]()], settings=EngineSettings(context=64))
    assert plain.resident is None and plain.execution.graphs is None


@pytest.mark.parametrize("method", ["linear", "overlap"])
def test_logits_that_are_not_finite_end_their_request_alone(model, method) -> None:
    host, resident = pair(model, [METHODS[method]])
    for engine in (host, resident):
        for i in range(3):
            submit(engine, model, i)
    real, calls = resident.resident.rounds.collect, []

    def poisoned():
        record = real()
        calls.append(1)
        plan = resident.resident._flights[0].plan
        if len(calls) > 3 and plan.who[0] == 0 and plan.act[0] == Act.VERIFY:
            # The verify row of slot 0 comes first.
            record.stats[: plan.block[0]] = np.nan
        return record

    resident.resident.rounds.collect = poisoned
    want, got = history(host.run()), history(resident.run())
    assert got["0"][-1][-1][0] == Finish.ERROR
    for key in ("1", "2"):
        assert got[key][-1][-1][1] == want[key][-1][-1][1]
    resident.pool.check_integrity()
