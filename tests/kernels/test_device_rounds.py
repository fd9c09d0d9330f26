"""Device-resident rounds, run by the torch twins on the bundled model: the tokens of AR."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from resident import BUDGET, CONTEXT, PAGE, PROMPTS, drained, prompts_of

from recguide_core.engine.device_policy import HostPlan
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.planned_rounds import PlannedRounds
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.model.registry import load_model


@pytest.fixture(scope="module")
def model():
    return load_model("nld-tiny")


def decode(model, settings: RoundSettings) -> tuple[list[list[int]], DeviceRounds, int]:
    """Emitted tokens of every request, the loop, and the number of forwards."""

    def build(*parts):
        *loop, graphs = parts
        return DeviceRounds(*loop, settings, graphs)

    return drained(model, build)


@pytest.fixture(scope="module")
def reference(model) -> list[list[int]]:
    return decode(model, RoundSettings(RoundRule(), 1))[0]


def test_ar_equals_the_engine(model, reference) -> None:
    """The reference of this file is the engine's own AR output."""
    from recguide_core.engine.engine import Engine
    from recguide_core.engine.planners import ArPlanner
    from recguide_core.engine.settings import EngineSettings
    from recguide_core.records import Request

    engine = Engine(model, planners=[ArPlanner()], settings=EngineSettings(context=CONTEXT))
    for i, prompt in enumerate(prompts_of(model)):
        engine.submit(Request(key=str(i), prompt=np.array(prompt), max_tokens=BUDGET))
    done = {}
    while not engine.idle:
        for event in engine.step():
            if event.finished is not None:
                done[event.key] = event.finished.tokens.tolist()
    assert [done[str(i)] for i in range(len(reference))] == reference


@pytest.mark.parametrize(
    "settings",
    [
        RoundSettings(RoundRule(), 8),
        RoundSettings(RoundRule(corrections=2, continuation=True), 8),
        RoundSettings(RoundRule(delta=2.0, corrections=2, continuation=True), 5),
        RoundSettings(RoundRule(tidar=True), 4),
    ],
    ids=["linear", "overlap", "overlap-everywhere", "tidar"],
)
def test_every_method_gives_the_tokens_of_ar(model, reference, settings) -> None:
    out, rounds, steps = decode(model, settings)
    assert out == reference
    done, reused = int(rounds.state.rounds.sum()), int(rounds.state.reused.sum())
    assert steps <= 2 * done
    if settings.rule.tidar:
        # A full set of branches always contains the one that came true.
        assert reused >= done - 2 * len(out)


LOOPS = {
    "fixed": lambda *parts: DeviceRounds(
        *parts[:-1], RoundSettings(RoundRule(corrections=2, continuation=True), 8), parts[-1]
    ),
    "planned": lambda *parts: PlannedRounds(
        *parts[:-1], HostPlan(OverlapPlanner(8), len(PROMPTS), 3), parts[-1]
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_stop_ids_end_one_request_and_leave_the_others(model, reference, loop) -> None:
    """The stop id of a request ends it at that token, wherever in a window it falls."""
    longest = max(range(len(reference)), key=lambda r: len(reference[r]))
    whole = reference[longest]
    for at in (2, 5, 9):
        stop = whole[at]

        def change(state, stop=stop) -> None:
            state.stop_ids[longest, 3] = stop

        out, rounds, _ = drained(model, LOOPS[loop], change)
        first = whole.index(stop, 1)
        assert out[longest] == whole[: first + 1]
        assert [o for r, o in enumerate(out) if r != longest] == [
            w for r, w in enumerate(reference) if r != longest
        ]
        assert not int(rounds.state.live[longest])


@pytest.mark.parametrize("loop", LOOPS)
def test_a_stop_found_by_the_host_ends_one_request(model, reference, loop) -> None:
    """A stop string shows when tokens are handed out, while the next step is on its way."""
    longest = max(range(len(reference)), key=lambda r: len(reference[r]))
    ended: list[int] = []

    def look(rounds, out) -> None:
        if not ended and len(out[longest]) >= 4:
            ended.append(len(out[longest]))
            rounds.end([longest])

    out, rounds, _ = drained(model, LOOPS[loop], look=look)
    # The step on its way may still bring tokens, which the caller drops; none comes after it.
    assert len(out[longest]) <= ended[0] + 8
    assert out[longest] == reference[longest][: len(out[longest])]
    for r, want in enumerate(reference):
        assert r == longest or out[r] == want
    assert not int(rounds.state.live[longest])


def test_branches_leave_no_trace_in_the_pool(model) -> None:
    """Only committed positions of the pool are ever written (it starts as NaN)."""
    settings = RoundSettings(RoundRule(delta=2.0, corrections=2, continuation=True), 8)
    _, rounds, _ = decode(model, settings)
    page_of = rounds.table.pages[: int(rounds.table.page_ptr[-1])].view(len(PROMPTS), -1)
    for r, P in enumerate(rounds.state.committed.tolist()):
        slots = page_of[r].long()[:, None] * PAGE + torch.arange(PAGE)
        written = ~rounds.pools.k[0][slots.reshape(-1)].isnan().any(-1).any(-1)
        assert written[:P].all()
        # A verify row commits up to B positions from P on; nothing lies behind them.
        assert not written[P + 8 :].any()
