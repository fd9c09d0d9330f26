"""Decoding loops of the card: greedy, replayed rounds, figures, the drafter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recguide_core.errors import DataError
from recguide_core.tiny import figures
from recguide_core.tiny.decode import causal_cache, choose, greedy
from recguide_core.tiny.drafter import DFlashDrafter, DrafterShape, load_drafter, save_drafter
from recguide_core.tiny.network import EOS, MASK, Shape, TinyModel
from recguide_core.tiny.rounds import Round, replay
from recguide_core.tiny.train_drafter import block_drafter

SHAPE = Shape(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=256,
)
PROMPTS = [[1, 4, 7, 8, 5], [1, 4, 9, 5], [1, 4, 10, 11, 12, 13, 5]]


@pytest.fixture(scope="module")
def model() -> TinyModel:
    torch.manual_seed(1)
    return TinyModel(SHAPE).eval()


@torch.inference_mode()
def whole_forward(model: TinyModel, ids: list[int]) -> Tensor:
    """Causal logits of one text by the dual-stream forward, without any cache."""
    n = len(ids)
    nothing = torch.zeros(1, 1, 0, n)
    hidden = model(torch.tensor([ids]), torch.arange(n)[None], nothing, n)
    return model.logits(hidden)[0]


def test_batched_greedy_equals_one_forward_a_token(model: TinyModel) -> None:
    answers = greedy(model, PROMPTS, new_tokens=12, batch=2)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        text = list(prompt)
        for token in answer:
            assert token == int(choose(whole_forward(model, text)[-1]))
            assert token != MASK
            text.append(token)
        assert len(answer) == 12 or answer[-1] == EOS


@torch.inference_mode()
def draft_alone(model: TinyModel, committed: list[int], seed: int, B: int) -> list[int]:
    """One draft by a dense mask over a single sequence: the definition."""
    P = len(committed)
    tokens = torch.tensor([[*committed, seed, *[MASK] * (B - 1)]])
    mask = torch.ones(P + B, P + B, dtype=torch.bool).tril()
    mask[P:, P:] = True
    empty = torch.zeros(1, SHAPE.num_key_value_heads, 0, SHAPE.head_dim)
    positions = torch.arange(P + B)[None]
    past = [(empty, empty)] * SHAPE.num_hidden_layers
    hidden, _ = model.step(tokens, positions, mask[None, None], past)
    return [int(t) for t in choose(model.logits(hidden)[0, P:])]


@pytest.mark.parametrize("B", [2, 4, 8])
def test_replayed_rounds_equal_sequential_speculation(model: TinyModel, B: int) -> None:
    answers = [[*a[:20], EOS] for a in greedy(model, PROMPTS, new_tokens=20)]
    replayed = replay(model, PROMPTS, answers, B, batch=2)
    for prompt, answer, rounds in zip(PROMPTS, answers, replayed, strict=True):
        done, expected = 1, []
        while done < len(answer):
            draft = draft_alone(model, prompt + answer[: done - 1], answer[done - 1], B)
            rest = answer[done:]
            c = 0
            while c < min(B - 1, len(rest)) and draft[c + 1] == rest[c]:
                c += 1
            expected.append(min(c + 1, len(rest)))
            done += expected[-1]
        assert [r.accepted for r in rounds] == expected
        assert sum(expected) == len(answer) - 1


def test_figures_on_a_small_example() -> None:
    def one(accepted: int, rejected: float | None) -> Round:
        passed = [0.9] * (accepted - 1)
        rank = None if rejected is None else 2
        return Round(0, accepted, rejected is None, passed, passed, rejected, rejected, rank)

    requests = [[one(2, 0.3), one(20, 0.4), one(32, None)], [one(10, 0.2), one(4, 0.1)]]
    assert figures.tau(requests) == pytest.approx(68 / 5)
    assert figures.full_rate(requests) == pytest.approx(1 / 5)
    assert figures.shares(requests) == pytest.approx([0.4, 0.2, 0.4])
    matrix, counts = figures.transitions(requests)
    assert counts == [1, 1, 1]
    assert matrix == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert figures.confidence(requests)["auroc"] == 1.0
    assert figures.ranks(requests)["second"] == 1.0
    assert figures.distinct_share([[1, 2, 3, 4, 1, 2, 3, 4]]) == pytest.approx(4 / 5)
    pair = np.array([0.5, 0.5])
    assert figures.auroc(pair, pair) == 0.5


@pytest.fixture(scope="module")
def drafter(model: TinyModel) -> DFlashDrafter:
    torch.manual_seed(2)
    shape = DrafterShape(
        target_hidden_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=32,
        max_position_embeddings=256,
    )
    return DFlashDrafter(shape, model.encoder.embed_tokens.weight)


def test_drafting_alone_equals_drafting_in_a_padded_batch(
    model: TinyModel, drafter: DFlashDrafter
) -> None:
    hidden, _ = causal_cache(model, PROMPTS)
    starts = torch.tensor([len(p) - 1 for p in PROMPTS])
    seeds = torch.tensor([p[-1] for p in PROMPTS])
    with torch.inference_mode():
        together = block_drafter(drafter, hidden)(seeds, starts, 8)
    for row, prompt in enumerate(PROMPTS):
        P = len(prompt) - 1
        alone = drafter.draft(hidden[row, :P], prompt[-1], P, 8)
        assert alone.shape == (8, 32)
        torch.testing.assert_close(alone, together[row], rtol=1e-4, atol=1e-4)


def test_the_drafter_reads_the_hidden_states(model: TinyModel, drafter: DFlashDrafter) -> None:
    hidden, _ = causal_cache(model, PROMPTS[:1])
    seen = drafter.draft(hidden[0, :4], 5, 4, 4)
    assert not torch.allclose(seen, drafter.draft(hidden[0, :4] * 0.0, 5, 4, 4))
    with pytest.raises(DataError, match="Hidden states"):
        drafter.draft(hidden[0, :3], 5, 4, 4)


def test_a_saved_drafter_reads_back(
    tmp_path: Path, model: TinyModel, drafter: DFlashDrafter
) -> None:
    save_drafter(tmp_path, drafter, "0" * 64)
    back = load_drafter(tmp_path, model.encoder.embed_tokens.weight)
    assert back.shape == drafter.shape
    for name, weight in drafter.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight.bfloat16().float())
    with pytest.raises(DataError, match="train_drafter"):
        load_drafter(tmp_path / "none", model.encoder.embed_tokens.weight)
