"""The engine's device-resident loop, run by the torch twins: events of the engine's own loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from resident_engines import METHODS, engine_for, history, pair, same, submit

from recguide_core.model.registry import load_model


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


def test_the_context_ends_before_the_budget(model) -> None:
    """The planner of the TiDAR layout cuts its blocks to what is left; the device would not."""

    def drive(engine):
        for i in range(3):
            submit(engine, model, i, max_tokens=200, ignore_eos=True)
        return engine.run()

    for method in ("tidar", "overlap", "linear"):
        same(*pair(model, [METHODS[method]], context=64), drive)


PAGE = 64
"""Every request of this test has one page, whatever it emits."""


def test_a_slot_s_next_request_lies_elsewhere(model) -> None:
    """As many pages as the last one's, but others."""

    def drive(engine):
        events = []
        for i in range(2):
            submit(engine, model, i, max_tokens=20)
            events += engine.run()
            if i == 0:
                assert engine.pool.reserve(99, 3 * PAGE)
        engine.pool.release(99)
        return events

    same(*pair(model, [METHODS["linear"]], requests=1, page_size=PAGE), drive)
