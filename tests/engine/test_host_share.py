"""The host's share: a forward that runs twice changes nothing, and the measurement leaves none."""

import numpy as np
import pytest
import torch
from harness import engine_of, finish_all, planner_of, request

from recguide_core.engine import host_share
from recguide_core.engine.repetition import Repetition

CACHED = ("ar", "linear", "overlap")


class Watched(Repetition):
    """Compares the whole KV pool behind both runs of every forward."""

    def __init__(self, pool) -> None:
        super().__init__()
        self.pool, self.seen = pool, []

    def _watch(self, name, act):
        def done():
            result = act()
            shot = torch.stack([*self.pool.k, *self.pool.v]).view(torch.int32).clone()
            self.seen.append((name, shot))
            return result

        return done

    def __call__(self, run, again):
        self.seen.clear()
        readings = super().__call__(self._watch("run", run), self._watch("again", again))
        (first, before), (second, after) = self.seen
        assert {first, second} == {"run", "again"}
        assert torch.equal(before, after)
        return readings


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", CACHED)
def test_a_forward_that_runs_twice_changes_nothing(tiny, pinned, method, batch):
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of(method), max_requests=batch, prefill_chunk=16)
    watched = engine.runner.repetition = Watched(engine.pool)
    for i, prompt in enumerate(prompts[:4]):
        engine.submit(request(i, prompt, 20))
    done = finish_all(engine)
    assert watched.count == engine.counters.steps
    for i in range(4):
        assert done[str(i)].tokens.tolist() == ar[i].tokens.tolist()[: len(done[str(i)].tokens)]


def test_either_order_is_as_frequent_in_every_alternation():
    """Of 64 forwards, and of every second and every fourth of them."""
    repetition, order = Repetition(), []
    for _ in range(64):
        ran = []
        repetition(lambda ran=ran: ran.append("run") or ran, lambda ran=ran: ran.append("again"))
        order.append(ran[0] == "run")
    for period in (1, 2, 4):
        for phase in range(period):
            assert np.mean(order[phase::period]) == 0.5


def endless(prompts):
    number = 0
    while True:
        yield request(f"host/{number}", prompts[number % len(prompts)], 12)
        number += 1


def test_the_measurement_leaves_nothing_behind(tiny, pinned):
    prompts, ar = pinned
    engine = engine_of(tiny, planner_of("linear"), max_requests=2)
    told = []

    class Listener:
        def on_rounds(self, view):
            told.append(view)

    listener = Listener()
    engine.observers.append(listener)
    share = host_share.measure(engine, endless(prompts), 2, 17)
    assert isinstance(share, float)
    assert engine.counters.steps == 17
    assert engine.runner.repetition is None
    engine.assert_all_returned()
    assert engine.observers == [listener] and not told
    engine.submit(request("after", prompts[0], 32))
    assert finish_all(engine)["after"].tokens.tolist() == ar[0].tokens.tolist()
    assert told


def test_long_steps_are_few(tiny, pinned):
    """No time at all: the least number of steps is timed, and all of it is given back."""
    engine = engine_of(tiny, planner_of("linear"), max_requests=2)
    assert isinstance(host_share.measure(engine, endless(pinned[0]), 2, 500, 0.0), float)
    assert engine.counters.steps == host_share.LEAST
    engine.assert_all_returned()


def test_it_ends_with_the_requests(tiny, pinned):
    engine = engine_of(tiny, planner_of("ar"), max_requests=2)
    few = iter([request(i, pinned[0][i], 3) for i in range(2)])
    assert isinstance(host_share.measure(engine, few, 1, 500), float)
    assert 2 <= engine.counters.steps < 500
    assert host_share.measure(engine, iter(()), 1, 500) is None


def test_no_share_where_a_step_is_more_than_its_forward(tiny, pinned):
    engine = engine_of(tiny, planner_of("ar"))
    engine.submit(request("busy", pinned[0][0], 8))
    assert host_share.measure(engine, endless(pinned[0]), 1, 4) is None
    engine.run()

    class Other:
        def execute(self, step, needs):
            raise AssertionError("nothing is sent")

    engine.executor = Other()
    assert host_share.measure(engine, endless(pinned[0]), 1, 4) is None
