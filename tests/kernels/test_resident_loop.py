"""The engine's device-resident loop, run by the torch twins: events of the engine's own loop."""

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
from recguide_core.records import Act, Finish, Sampling


@pytest.fixture(scope="module")
def model():
    return load_model("nld-tiny")


@pytest.mark.parametrize("requests", [1, 3, 8])
@pytest.mark.parametrize("method", METHODS)
def test_events_are_those_of_the_host_loop(model, method, requests) -> None:
    def drive(engine):
        for i in range(requests):
            submit(engine, model, i, max_tokens=12 + 3 * i)
        return engine.run()

    host, resident = pair(model, [METHODS[method]], requests=requests)
    same(host, resident, drive)
    assert resident.counters.by_kind == host.counters.by_kind
    assert resident.counters.query_tokens == host.counters.query_tokens
    assert resident.counters.kv_tokens == host.counters.kv_tokens


@pytest.mark.parametrize("method", METHODS)
def test_more_requests_than_slots(model, method) -> None:
    """Who waits is admitted when a slot falls free, and the others do what they would have done."""

    def drive(engine):
        for i in range(6):
            submit(engine, model, i, max_tokens=5 + 4 * (i % 3))
        return engine.run()

    host, resident = pair(model, [METHODS[method]], requests=2)
    same(host, resident, drive)
    assert set(resident.execution.graphs.report.host) == {"prompts to commit"}
    if method not in ("ar", "linear"):
        # Nobody waits a round longer; with two rounds under way one is.
        assert resident.counters.steps == host.counters.steps


@pytest.mark.parametrize("method", ["ar", "linear", "overlap", "tidar"])
def test_somebody_comes_midway(model, method) -> None:
    def drive(engine):
        submit(engine, model, 0, max_tokens=30)
        submit(engine, model, 1, max_tokens=24)
        events, told = [], 0
        while not engine.idle:
            fresh = engine.step()
            events += fresh
            told += sum(len(e.tokens) for e in fresh if e.key == "0")
            if told > 6 and not any(e.key == "2" for e in events) and "2" not in seen(engine):
                submit(engine, model, 2)
        return events

    def seen(engine):
        return engine.ledger.by_key

    same(*pair(model, [METHODS[method]]), drive)


SAMPLED = (
    {"sampling": Sampling(temperature=0.8, seed=3)},
    {},
    {"sampling": Sampling(temperature=1.3, top_p=0.7, seed=2**40 + 5)},
    {"sampling": Sampling(temperature=0.9, top_k=5, min_p=0.05, seed=9)},
)


@pytest.mark.parametrize("method", ["ar", "linear", "overlap", "tidar"])
def test_sampling_and_filters_stay_on_the_device(model, method) -> None:
    def drive(engine):
        for i, wish in enumerate(SAMPLED):
            submit(engine, model, i, **wish)
        return engine.run()

    host, resident = pair(model, [METHODS[method]], requests=4)
    same(host, resident, drive)
    assert not resident.execution.graphs.report.host


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"logprobs": 2}, "log-probabilities"),
        ({"sampling": Sampling(logit_bias=((40, 8.0),))}, "logit bias"),
    ],
    ids=["logprobs", "bias"],
)
def test_wishes_of_one_send_the_steps_to_the_host(model, wish, reason) -> None:
    """As long as somebody wants more than the kernels read; then the device takes over."""

    def drive(engine):
        submit(engine, model, 0, max_tokens=30)
        submit(engine, model, 1, max_tokens=6, **wish)
        return engine.run()

    host, resident = pair(model, [METHODS["overlap"]])
    same(host, resident, drive)
    assert set(resident.execution.graphs.report.host) == {reason}


@pytest.mark.parametrize("method", ["linear", "overlap"])
def test_every_way_to_stop(model, method) -> None:
    """On the device: stop ids, budgets, EOS; on the host: a stop rule, more ids than it holds."""
    free = engine_for(model, [METHODS["ar"]()], False, requests=5)
    for i in range(5):
        submit(free, model, i, max_tokens=24, ignore_eos=i == 4)
    text = {key: [t for e in told for t in e[0]] for key, told in history(free.run()).items()}

    def drive(engine):
        submit(engine, model, 0, max_tokens=24, stop_ids=frozenset({text["0"][7]}))
        many = frozenset({text["1"][6], *range(1000, 1010)})
        submit(engine, model, 1, max_tokens=24, stop_ids=many)
        left = [5]

        def fifth(token: int) -> bool:
            left[0] -= 1
            return left[0] < 0

        submit(engine, model, 2, max_tokens=24, stop=fifth)
        submit(engine, model, 3, max_tokens=9)
        submit(engine, model, 4, max_tokens=24, ignore_eos=True)
        return engine.run()

    host, resident = pair(model, [METHODS[method]], requests=5)
    same(host, resident, drive)


@pytest.mark.parametrize("method", ["ar", "overlap"])
def test_an_ignored_eos_is_a_token_like_any_other(model, method) -> None:
    def drive(engine):
        for i in range(3):
            submit(engine, model, i, max_tokens=40, ignore_eos=True)
        return engine.run()

    host, resident = pair(model, [METHODS[method]])
    same(host, resident, drive)
    again = history(drive(host))
    inner = [set(told[-1][-1][1][:-1]) for told in again.values()]
    assert any(tokens & model.eos_ids for tokens in inner)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [1, 4, 9])
def test_an_abort_takes_effect_between_rounds(model, method, at) -> None:
    """The round under way brings nothing more of it, and its slot and pages are free."""

    def drive(engine):
        for i in range(3):
            submit(engine, model, i, max_tokens=18)
        events, told = [], 0
        while not engine.idle:
            events += engine.step()
            told = sum(len(e.tokens) for e in events if e.key == "1")
            if told >= at and engine.abort("1"):
                assert all(live.request.key != "1" for live in engine.scheduler.running.values())
        return events

    host, resident = pair(model, [METHODS[method]])
    want, got = history(drive(host)), history(drive(resident))
    assert got["1"][-1][-1][0] in (Finish.ABORT, Finish.STOP)
    for key in want:
        assert [t for e in got[key] for t in e[0]] == [t for e in want[key] for t in e[0]]
    resident.pool.check_integrity()
    assert resident.pool.free_pages == resident.pool.pages


@pytest.mark.parametrize("method", ["linear", "overlap", "tidar", "recguide"])
def test_short_pages_preempt_without_losing_a_token(model, method) -> None:
    """Where somebody might be preempted, every token has to be handed out first."""

    def drive(engine):
        for i in range(3):
            submit(engine, model, i, max_tokens=60, ignore_eos=True)
        return engine.run()

    host, resident = pair(model, [METHODS[method]], kv_tokens=16 * 7, context=112)
    want, got = history(drive(host)), history(drive(resident))
    assert host.scheduler.preemptions and resident.scheduler.preemptions
    for key in want:
        assert got[key][-1][-1][1] == want[key][-1][-1][1]
    resident.pool.check_integrity()
    assert resident.pool.free_pages == resident.pool.pages
    assert resident.execution.graphs.report.resident > 0


def test_methods_side_by_side(model) -> None:
    def drive(engine):
        for i in range(6):
            submit(engine, model, i, planner=i % 3)
        return engine.run()

    host, resident = pair(model, [METHODS[m] for m in ("ar", "linear", "overlap")], requests=6)
    same(host, resident, drive)


@pytest.mark.parametrize("method", ["linear", "overlap", "tidar"])
def test_blocks_that_requests_insist_on(model, method) -> None:
    def drive(engine):
        for i, block in enumerate((0, 1, 11)):
            submit(engine, model, i, fixed_block=block)
        return engine.run()

    same(*pair(model, [METHODS[method]]), drive)


def test_bucketed_batching(model) -> None:
    def drive(engine):
        for i in range(4):
            submit(engine, model, i)
        return engine.run()

    options = {"batching": "bucketed", "max_admitted": 4, "requests": 2}
    same(*pair(model, [METHODS["linear"]], **options), drive)


class Watcher:
    """What observers saw of every round, by request."""

    def __init__(self) -> None:
        self.seen: dict[str, list] = {}

    def on_rounds(self, view) -> None:
        for i, slot in enumerate(view.outcome.who.tolist()):
            entry = int(view.verified.entry[i])
            row = view.step.main[entry]
            first = view.step.row_start[row]
            width = int(view.outcome.width[i])
            self.seen.setdefault(view.keys[slot], []).append(
                (
                    width,
                    int(view.outcome.matched[i]),
                    int(view.outcome.hit[i]),
                    view.step.rows.tokens[first : first + width].tolist(),
                    view.step.positions[first : first + width].tolist(),
                    view.plan.branch_parent[entry][view.plan.branch_kind[entry] >= 0].tolist(),
                    bool(view.table.has_draft[slot]),
                )
            )


@pytest.mark.parametrize("method", ["ar", "linear", "overlap"])
def test_observers_see_the_same_rounds(model, method) -> None:
    host, resident = pair(model, [METHODS[method]])
    watchers = []
    for engine in (host, resident):
        watchers.append(Watcher())
        engine.observers.append(watchers[-1])
        for i in range(3):
            submit(engine, model, i)
        engine.run()
    assert watchers[0].seen == watchers[1].seen


ORDER = {
    # The device chooses and no round is larger than a bound: two are under way.
    "linear": ["launch", "launch", "collect", "settle", "hand_out", "launch", "collect", "settle"],
    # The device chooses, the record says how large.
    "overlap": ["launch", "collect", "launch", "settle", "hand_out", "collect", "launch", "settle"],
    # The planner chooses, on the settled record.
    "recguide": ["launch", "collect", "settle", "launch", "hand_out", "collect", "settle"],
}


@pytest.mark.parametrize("method", ORDER)
def test_a_round_is_launched_before_the_last_is_handed_out(model, method) -> None:
    engine = engine_for(model, [METHODS[method]()], True)
    rounds, log = engine.resident.rounds, []

    def spied(owner, name):
        real = getattr(owner, name)

        def call(*args, **options):
            log.append(name)
            return real(*args, **options)

        setattr(owner, name, call)

    for name in ("launch", "collect"):
        spied(rounds, name)
    for name in ("settle", "hand_out"):
        spied(engine, name)
    submit(engine, model, 0, max_tokens=40)
    while not engine.idle and log.count("collect") < 3:
        engine.step()
    begun = log.index("launch")
    assert log[begun : begun + len(ORDER[method])] == ORDER[method]
    engine.abort("0")
    engine.run()


@pytest.mark.parametrize("method", ["ar", "linear", "overlap", "tidar"])
def test_the_cache_holds_what_a_fresh_prefill_writes(model, method) -> None:
    engine = engine_for(model, [METHODS[method]()], True)
    for i in range(3):
        submit(engine, model, i, max_tokens=40)
    for _ in range(14):
        engine.step()
    compared = 0
    for slot, live in list(engine.scheduler.running.items()):
        P = engine.pool.committed(slot)
        context = np.concatenate((live.request.prompt, live.tokens[:-1]))
        assert len(context) == P
        fresh = engine_for(model, [METHODS["ar"]()], False, prefill_chunk=0)
        submit(fresh, model, 0)
        fresh.ledger.by_key["0"].context = context
        fresh.step()
        theirs = next(iter(fresh.scheduler.running))
        for mine, other in ((engine.pool.k, fresh.pool.k), (engine.pool.v, fresh.pool.v)):
            for layer, against in zip(mine, other, strict=True):
                at = torch.from_numpy(engine.pool.slots(slot, 0, P))
                there = torch.from_numpy(fresh.pool.slots(theirs, 0, P))
                assert torch.allclose(layer[at], against[there], atol=1e-4)
        compared += 1
    assert compared


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


@pytest.mark.parametrize("method", ["linear", "overlap"])
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


@pytest.mark.parametrize("seed", range(4))
def test_any_play_gives_the_tokens_of_ar(model, seed) -> None:
    """Requests that come, go and are taken back, of any method, at any moment."""
    rng = np.random.default_rng(seed)
    alone = engine_for(model, [METHODS["ar"]()], False, requests=8)
    for i in range(8):
        submit(alone, model, i, max_tokens=25)
    want = {e.key: e.finished.tokens.tolist() for e in alone.run() if e.finished is not None}
    methods = list(METHODS.values())
    engine = engine_for(model, [m() for m in methods], True, requests=4)
    left, taken, got = list(range(8)), set(), {}
    while left or not engine.idle:
        if left and rng.random() < 0.4:
            i = left.pop(0)
            submit(engine, model, i, max_tokens=25, planner=int(rng.integers(len(methods))))
        for event in engine.step():
            got.setdefault(event.key, []).extend(event.tokens)
        if rng.random() < 0.03 and engine.ledger.by_key:
            key = str(rng.choice(sorted(engine.ledger.by_key)))
            taken.add(key)
            engine.abort(key)
    for key, tokens in got.items():
        assert tokens == want[key][: len(tokens)]
        assert key in taken or tokens == want[key]
    engine.pool.check_integrity()
    assert engine.pool.free_pages == engine.pool.pages
    assert engine.execution.graphs.report.resident > 0


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


def test_the_context_ends_before_the_budget(model) -> None:
    """The planner of the TiDAR layout cuts its blocks to what is left; the device would not."""

    def drive(engine):
        for i in range(3):
            submit(engine, model, i, max_tokens=200, ignore_eos=True)
        return engine.run()

    for method in ("tidar", "overlap", "linear"):
        same(*pair(model, [METHODS[method]], context=64), drive)
