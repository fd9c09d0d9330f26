"""Whole device-resident rounds of a small model, every operation a kernel: the twins' tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.device_forward import DeviceForward, Pools, geometry_of
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import RoundOps, TorchRoundOps
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kernels.prefill import prefill
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.kernels.step_buffers import StepBuffers
from recguide_core.model.config import config_from_dict
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.registry import random_model
from recguide_core.model.transformer import Transformer

PAGE, CONTEXT, BUDGET, RANK = 16, 64, 6, 16
PROMPTS = ([1, 8, 8], [1, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65])


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    config = config_from_dict(
        {
            "model_type": "nemotron_labs_diffusion", "hidden_size": 128, "intermediate_size": 128,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 64, "vocab_size": 24, "max_position_embeddings": 128, "mask_token_id": 3,
            "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": {"rope_theta": 10000.0},
        }
    )  # fmt: skip
    made = random_model("small", config, dtype="float32", max_positions=128).transformer
    g = torch.Generator().manual_seed(5)
    made.adapter = DraftAdapter(
        [torch.randn(RANK, 256, generator=g) / 16 for _ in range(1)],
        [torch.randn(128, RANK, generator=g) / 16 for _ in range(1)],
    )
    return made


def decode(transformer: Transformer, settings: RoundSettings, triton: bool) -> tuple[list, int]:
    geometry = geometry_of(transformer, PAGE)

    def make(tokens: int, requests: int) -> RoundOps:
        if not triton:
            return TorchRoundOps(geometry)
        return TritonRoundOps(geometry, tokens, requests, "cpu", 2, exact=True, rank=RANK)

    prompts = [[t % 24 for t in p] for p in PROMPTS]
    per = CONTEXT // PAGE
    order = np.random.default_rng(0).permutation(per * len(prompts)).reshape(-1, per)
    pools = Pools(*(
        [torch.full((order.size * PAGE, 2, 64), float("nan"))] for _ in range(2)
    ))  # fmt: skip
    total = sum(len(p) for p in prompts)
    buffers = StepBuffers(total, len(prompts), order.size, PAGE, torch.device("cpu"))
    head = OutputHead(transformer.weights.head, 16)
    with torch.inference_mode():
        forward = DeviceForward(transformer, make(total, len(prompts)), total)
        state = prefill(forward, head, buffers, pools, prompts, order.tolist(),
                        max_tokens=BUDGET, context=CONTEXT)  # fmt: skip
        graphs = GraphCache(None, 0, lambda: 0)
        rounds = DeviceRounds(transformer, make, pools, buffers.table, state, settings, graphs)
        out = [[int(s)] for s in state.seed]
        steps = 0
        while not rounds.done:
            emitted = rounds.step()
            steps += 1
            for tokens, count, mine in zip(emitted.tokens, emitted.count, out, strict=True):
                mine.extend(tokens[: int(count)].tolist())
    return out, steps


@pytest.mark.parametrize(
    "settings",
    [
        RoundSettings(RoundRule(delta=2.0, corrections=2, continuation=True), 3),
        RoundSettings(RoundRule(tidar=True), 2),
    ],
    ids=["overlap", "tidar"],
)
def test_kernels_decode_what_the_twins_decode(transformer, settings) -> None:
    want, steps = decode(transformer, settings, triton=False)
    assert decode(transformer, settings, triton=True) == (want, steps)
    assert want == decode(transformer, RoundSettings(RoundRule(), 1), triton=False)[0]
