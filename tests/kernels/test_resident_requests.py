"""What requests may ask of the device-resident loop, how they stop, and how they are taken back."""

from __future__ import annotations

import numpy as np
import pytest
from resident_engines import METHODS, engine_for, history, pair, same, submit

from recguide_core.model.registry import load_model
from recguide_core.records import Finish, Sampling


@pytest.fixture(scope="module")
def model():
    return load_model("nld-tiny")


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
