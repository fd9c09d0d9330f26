"""Seeded sampling inside device-resident rounds: the engine's own tokens, method by method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from resident import BUDGET, CONTEXT, PROMPTS, drained, prompts_of

from recguide_core.engine.device_policy import HostPlan
from recguide_core.engine.engine import Engine
from recguide_core.engine.planners import ArPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import UsageError
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.planned_rounds import PlannedRounds
from recguide_core.kernels.round_state import PackedRows, RoundState
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.kernels.row_noise import NoiseSource, set_sampling, why_not
from recguide_core.kernels.sampling_torch import gumbel_noise, noise_table
from recguide_core.model.registry import load_model
from recguide_core.policy.branches import BranchRule
from recguide_core.records import Request, Sampling

SAMPLING = (
    Sampling(temperature=0.7, seed=11),
    Sampling(),
    Sampling(temperature=1.4, seed=2**45 + 3),
)
EVERYWHERE = BranchRule(delta=2.0)


def fixed(rule: RoundRule, target: int):
    settings = RoundSettings(rule, target, sampled=True)
    return lambda *parts: DeviceRounds(*parts[:-1], settings, parts[-1])


def planned(*parts):
    decide = HostPlan(OverlapPlanner(6, EVERYWHERE), len(PROMPTS), 3)
    return PlannedRounds(*parts[:-1], decide, parts[-1], sampled=True)


LOOPS = {
    "ar": fixed(RoundRule(), 1),
    "linear": fixed(RoundRule(), 8),
    "overlap": fixed(RoundRule(delta=2.0, corrections=2, continuation=True), 8),
    "tidar": fixed(RoundRule(tidar=True), 4),
    "planned": planned,
}


@pytest.fixture(scope="module")
def model():
    return load_model("nld-tiny")


@pytest.fixture(scope="module")
def reference(model) -> list[list[int]]:
    """Seeded AR by the engine on the torch back end, greedy beside sampling requests."""
    engine = Engine(model, planners=[ArPlanner()], settings=EngineSettings(context=CONTEXT))
    for i, prompt in enumerate(prompts_of(model)):
        request = Request(str(i), np.array(prompt), max_tokens=BUDGET, sampling=SAMPLING[i])
        engine.submit(request)
    done = {e.key: e.finished.tokens.tolist() for e in engine.run() if e.finished is not None}
    return [done[str(i)] for i in range(len(PROMPTS))]


@pytest.mark.parametrize("method", LOOPS)
def test_every_method_samples_the_tokens_of_the_engine(model, reference, method) -> None:
    out, rounds, _ = drained(model, LOOPS[method], sampling=SAMPLING)
    assert out == reference
    if method != "ar":
        assert int(rounds.state.rounds.sum()) > 0


def test_sampling_is_not_greedy(model, reference) -> None:
    greedy, _, _ = drained(model, LOOPS["ar"])
    assert greedy[1] == reference[1]
    assert greedy[0] != reference[0] or greedy[2] != reference[2]


def test_looked_up_noise_is_the_host_s_bit_for_bit() -> None:
    """Table and key of the device against the noise that the torch back end computes."""
    state = RoundState.sized(3)
    settings = [Sampling(temperature=1.0, seed=s) for s in (0, 2**31 + 7, 2**63 - 1)]
    set_sampling(state, settings)
    rows = PackedRows.sized(8, 3)
    rows.request.copy_(torch.tensor([0, 0, 1, 1, 2, 2, 2, -1]))
    rows.pos.copy_(torch.tensor([4, 5, 900, 901, 16000, 0, 1, 0]))
    rows.commit.copy_(torch.tensor([1, 1, 1, 0, 0, 1, 0, 0]))
    noise = NoiseSource(torch.device("cpu")).of(rows, state)
    assert noise.heat.tolist() == [1.0] * 7 + [0.0]
    vocab = 5000
    ids = torch.arange(vocab)

    def mix(x: torch.Tensor) -> torch.Tensor:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    for i in range(7):
        key = int(noise.key[i]) & 0xFFFFFFFF
        at = mix(mix((ids * 0x9E3779B1) & 0xFFFFFFFF) ^ key) >> 9
        seed = torch.tensor([settings[int(rows.request[i])].seed])
        position = rows.pos[i : i + 1].long() + rows.commit[i]
        assert torch.equal(noise.table[at], gumbel_noise(seed, position, vocab)[0])


def test_the_table_holds_no_infinite_noise() -> None:
    table = noise_table()
    assert len(table) == 1 << 23
    assert table.isfinite().all()
    assert (table.diff() >= 0).all()


def test_what_the_device_cannot_sample_is_refused() -> None:
    for sampling, reason in (
        (Sampling(temperature=1.0, top_p=0.9), "top-p"),
        (Sampling(temperature=1.0, top_k=4), "top-k"),
        (Sampling(temperature=1.0, min_p=0.1), "min-p"),
        (Sampling(logit_bias=((3, 1.0),)), "logit bias"),
    ):
        assert reason in (why_not(sampling) or "")
        with pytest.raises(UsageError, match="cannot serve"):
            set_sampling(RoundState.sized(1), [sampling])
    assert why_not(Sampling(top_p=0.5)) is None, "greedy takes no notice of filters"
