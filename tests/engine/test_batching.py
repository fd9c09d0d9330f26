"""Ragged and bucketed steps: one size a forward, bounded waiting, the same text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.engine.batching import Batching
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import draft_or_verify
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import LoadedModel, load_model
from recguide_core.records import Act, IntArray, Plan, Request, RequestTable


def plan_of(acts: list[int], blocks: list[int]) -> Plan:
    plan = Plan.empty(np.arange(len(acts)))
    plan.act[:] = acts
    plan.block[:] = blocks
    return plan


entries = st.lists(
    st.tuples(st.sampled_from([Act.DRAFT, Act.VERIFY]), st.sampled_from([8, 16, 32])),
    min_size=1,
    max_size=12,
)


@given(entries, st.integers(1, 12))
def test_a_bucket_holds_one_kind_and_size_and_at_most_a_batch(
    drawn: list[tuple[int, int]], batch: int
) -> None:
    batching = Batching(
        EngineSettings(max_requests=batch, max_admitted=max(batch, 12), batching="bucketed")
    )
    plan = batching.select(plan_of([a for a, _ in drawn], [b for _, b in drawn]))
    runs = plan.act != Act.IDLE
    assert 1 <= runs.sum() <= batch
    assert len({(a, b) for a, b in zip(plan.act[runs], plan.block[runs], strict=True)}) == 1


@settings(max_examples=50)
@given(entries, st.integers(1, 4), st.integers(1, 6))
def test_nobody_starves(drawn: list[tuple[int, int]], batch: int, bound: int) -> None:
    """However the sizes are mixed, everybody runs within bound + one turn of each bucket."""
    n = len(drawn)
    batching = Batching(
        EngineSettings(
            max_requests=batch, max_admitted=max(n, batch), batching="bucketed", bucket_wait=bound
        )
    )
    last_run = np.zeros(n, np.int64)
    worst = bound + n
    for step in range(1, 4 * worst):
        plan = batching.select(plan_of([a for a, _ in drawn], [b for _, b in drawn]))
        last_run[plan.act != Act.IDLE] = step
        assert (step - last_run).max() <= worst


def test_ragged_runs_everybody_up_to_the_batch() -> None:
    batching = Batching(EngineSettings(max_requests=2, max_admitted=3))
    seen = np.zeros(3, int)
    for _ in range(3):
        plan = batching.select(plan_of([Act.DRAFT] * 3, [8, 16, 32]))
        assert (plan.act != Act.IDLE).sum() == 2
        seen += plan.act != Act.IDLE
    assert (seen == 2).all()


class MixedPlanner:
    """Sizes that differ between requests and rounds, to fill several buckets."""

    name = "mixed"
    block_size: int | None = None
    max_in_flight = 16
    first_draft = 0

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        plan = Plan.empty(who)
        sizes = np.array([4, 8, 16])
        draft_or_verify(plan, table, sizes[(who + table.rounds[who]) % 3])
        return plan


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("nld-tiny")


def outputs(model: LoadedModel, planner: object, **options: object) -> dict[str, list[int]]:
    engine = Engine(
        model,
        planners=[planner],  # type: ignore[list-item]
        settings=EngineSettings(**options),  # type: ignore[arg-type]
    )
    assert model.tokenizer is not None
    for i in range(5):
        text = model.render([{"role": "user", "content": f"Count from {i} to {i + 6}."}])
        engine.submit(Request(str(i), np.array(model.tokenizer.encode(text)), 20 + i))
    done = [e.finished for e in engine.run() if e.finished]
    engine.pages.check_integrity()
    return {f.key: f.tokens.tolist() for f in done}


@pytest.mark.parametrize("batching", ["ragged", "bucketed"])
def test_text_does_not_depend_on_batching(model: LoadedModel, batching: str) -> None:
    plain = outputs(model, make_planner("ar"), max_requests=1)
    mixed = outputs(model, MixedPlanner(), max_requests=2, max_admitted=5, batching=batching)
    assert mixed == plain
