"""Seeded sampling inside device-resident rounds: the engine's own tokens, method by method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resident import BUDGET, CONTEXT, PROMPTS, drained, prompts_of

from recguide_core.engine.device_policy import HostPlan
from recguide_core.engine.engine import Engine
from recguide_core.engine.planners import ArPlanner
from recguide_core.engine.planners_overlap import OverlapPlanner
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import UsageError
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import Geometry, TorchRoundOps
from recguide_core.kernels.planned_rounds import PlannedRounds
from recguide_core.kernels.readout_torch import read_out
from recguide_core.kernels.round_state import PackedRows, ReadoutBuffers, RoundState
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.kernels.row_noise import NoiseSource, filters, set_sampling, why_not
from recguide_core.kernels.sampling_torch import SamplingRows, gumbel_noise, noise_table
from recguide_core.model.registry import load_model
from recguide_core.policy.branches import BranchRule
from recguide_core.records import Request, Sampling

SAMPLING = (
    Sampling(temperature=0.7, seed=11),
    Sampling(),
    Sampling(temperature=1.4, seed=2**45 + 3),
)
FILTERED = (
    Sampling(temperature=0.9, seed=5, top_p=0.8),
    Sampling(temperature=1.2, seed=2**40 + 1, top_k=6, min_p=0.05),
    Sampling(temperature=1.1, seed=8),
)
EVERYWHERE = BranchRule(delta=2.0)


def fixed(rule: RoundRule, target: int):
    method = RoundSettings(rule, target, sampled=True)
    return lambda *parts: DeviceRounds(*parts[:-1], method, parts[-1])


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


def seeded_ar(model, sampling) -> list[list[int]]:
    """Seeded AR by the engine on the torch back end."""
    engine = Engine(model, planners=[ArPlanner()], settings=EngineSettings(context=CONTEXT))
    for i, prompt in enumerate(prompts_of(model)):
        request = Request(str(i), np.array(prompt), max_tokens=BUDGET, sampling=sampling[i])
        engine.submit(request)
    done = {e.key: e.finished.tokens.tolist() for e in engine.run() if e.finished is not None}
    return [done[str(i)] for i in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def reference(model) -> list[list[int]]:
    """Greedy beside sampling requests."""
    return seeded_ar(model, SAMPLING)


@pytest.fixture(scope="module")
def cut(model) -> list[list[int]]:
    """Requests that filter beside one that does not."""
    return seeded_ar(model, FILTERED)


@pytest.mark.parametrize("method", LOOPS)
def test_every_method_samples_the_tokens_of_the_engine(model, reference, method) -> None:
    out, rounds, _ = drained(model, LOOPS[method], sampling=SAMPLING)
    assert out == reference
    if method != "ar":
        assert int(rounds.state.rounds.sum()) > 0


@pytest.mark.parametrize("method", LOOPS)
def test_every_method_filters_as_the_engine_does(model, cut, method) -> None:
    assert drained(model, LOOPS[method], sampling=FILTERED)[0] == cut


@given(
    seed=st.integers(0, 10**6),
    places=st.integers(1, 12),
    rows=st.integers(1, 9),
    tie=st.booleans(),
)
@settings(deadline=None, derandomize=True, database=None, max_examples=40)
def test_rows_read_again_are_those_of_the_oracle(seed, places, rows, tie) -> None:
    """Token, runner-up and statistics bit for bit; rows that do not filter keep what they had."""
    g = torch.Generator().manual_seed(seed)
    vocab, n = 60, 3
    state = RoundState.sized(n)
    wanted = [
        Sampling(0.7, top_p=0.5, seed=1),
        Sampling(1.3, top_k=3, min_p=0.02, seed=2**50),
        Sampling(0.9, seed=4),
    ]
    set_sampling(state, wanted)
    packed = PackedRows.sized(rows, n)
    packed.request.copy_(torch.randint(-1, n, (rows,), generator=g))
    packed.pos.copy_(torch.randint(0, 500, (rows,), generator=g))
    packed.commit.copy_(torch.randint(0, 2, (rows,), generator=g))
    filtering = int(((packed.request == 0) | (packed.request == 1)).sum())
    places = min(max(places, filtering), rows)
    noise = NoiseSource(torch.device("cpu")).of(packed, state, places)
    z = torch.randn(rows, vocab, generator=g) * 3
    if tie:
        z = z.round()
    # A head whose product is the logits themselves, in chunks that cut the places.
    head = OutputHead(torch.eye(vocab), rows)
    head.rows = 8
    into = ReadoutBuffers.sized(rows)
    geometry = Geometry(2, 1, 64, vocab, 16, 7, (3,))
    head.run(TorchRoundOps(geometry), z, into, noise)
    for i in range(rows):
        who = int(packed.request[i])
        if who < 0:
            continue
        one = wanted[who]
        oracle = SamplingRows(
            rows=torch.tensor([0]),
            position=packed.pos[i : i + 1].long() + packed.commit[i],
            seed=torch.tensor([one.seed]),
            temperature=torch.tensor([one.temperature]),
            top_p=torch.tensor([one.top_p]),
            min_p=torch.tensor([one.min_p]),
            top_k=torch.tensor([one.top_k]),
        )
        want = read_out(z[i : i + 1].clone(), 7, (3,), oracle)
        assert int(into.token[i]) == int(want.token)
        assert int(into.alt[i]) == int(want.alt)
        for name in ("confidence", "margin", "entropy"):
            assert torch.allclose(getattr(into, name)[i], getattr(want, name), atol=1e-6)


def test_sampling_is_not_greedy(model, reference) -> None:
    greedy, _, _ = drained(model, LOOPS["ar"])
    assert greedy[1] == reference[1]
    assert greedy[0] != reference[0] or greedy[2] != reference[2]


def test_looked_up_noise_is_the_host_s_bit_for_bit() -> None:
    """Table and key of the device against the noise that the torch back end computes."""
    state = RoundState.sized(3)
    wanted = [Sampling(temperature=1.0, seed=s) for s in (0, 2**31 + 7, 2**63 - 1)]
    set_sampling(state, wanted)
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
        seed = torch.tensor([wanted[int(rows.request[i])].seed])
        position = rows.pos[i : i + 1].long() + rows.commit[i]
        assert torch.equal(noise.table[at], gumbel_noise(seed, position, vocab)[0])


def test_the_table_holds_no_infinite_noise() -> None:
    table = noise_table()
    assert len(table) == 1 << 23
    assert table.isfinite().all()
    assert (table.diff() >= 0).all()


def test_what_the_device_cannot_sample_is_refused() -> None:
    biased = Sampling(logit_bias=((3, 1.0),))
    assert why_not(biased) == "logit bias"
    with pytest.raises(UsageError, match="cannot serve"):
        set_sampling(RoundState.sized(1), [biased])
    for one in (Sampling(1.0, top_p=0.9), Sampling(1.0, top_k=4), Sampling(1.0, min_p=0.1)):
        assert why_not(one) is None
        assert filters(one)
    assert not filters(Sampling(top_p=0.5)), "greedy takes no notice of filters"
