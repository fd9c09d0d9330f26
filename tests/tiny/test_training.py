"""Training: the dual-stream mask, resuming, the adapter, the exported file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from recguide_core.errors import DataError
from recguide_core.tiny.export import read_weights, write_weights
from recguide_core.tiny.lora import add_adapter, switch_adapter
from recguide_core.tiny.network import EOS, MASK, Shape, TinyModel
from recguide_core.tiny.prepare import data_folder
from recguide_core.tiny.recipe import Stage, read_recipe
from recguide_core.tiny.streams import Noise, build, circling, schedule
from recguide_core.tiny.text import WEIGHTS
from recguide_core.tiny.token_file import Example, Use, read_examples, write_examples
from recguide_core.tiny.train import Run, losses, unlikelihood

TOY = Shape(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=128,
)
STAGE = Stage(
    tokens=10_000,
    batch_tokens=128,
    draft_weight=1.0,
    muon_rate=0.01,
    adam_rate=0.003,
    final_rate=0.1,
    warmup_steps=2,
    seed=3,
)


def examples(count: int, seed: int = 0) -> list[Example]:
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        text = np.append(rng.integers(6, 64, int(rng.integers(20, 60))), EOS)
        result.append(Example(text, int(rng.integers(3, 10))))
    return result


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", range(8))
def test_mask_equals_the_definition_block_by_block(seed: int) -> None:
    batch = build(examples(3, seed), Noise(sizes=(4, 8)), np.random.default_rng(seed))
    seen = batch.mask(torch.float32)[:, 0] == 0
    n, S = batch.start.shape
    T = batch.clean
    for r in range(n):
        for q in range(S):
            block = batch.block[r, q]
            first = int(batch.start[r, q])
            for k in range(T):
                assert bool(seen[r, q, k]) == (k < first)
            for k in range(S):
                assert bool(seen[r, q, T + k]) == (batch.block[r, k] == block)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_noised_blocks_hold_the_answer_and_hide_only_its_tokens(share: float) -> None:
    rows = examples(4, 5)
    batch = build(rows, Noise(sizes=(8,)), np.random.default_rng(1), share)
    T = batch.clean
    for r, row in enumerate(rows):
        own = np.flatnonzero(batch.block[r] >= 0)
        for q in own:
            position = int(batch.positions[r, T + q])
            inside = position < len(row.tokens)
            expected = int(row.tokens[position]) if inside else EOS
            assert position >= row.prompt
            assert int(batch.targets[r, T + q]) == expected
            assert int(batch.tokens[r, T + q]) in (expected, MASK)
            hidden = int(batch.tokens[r, T + q]) == MASK
            assert (batch.draft_weight[r, q] > 0) == hidden
        if share == 1.0:
            covered = {int(p) for p in batch.positions[r, T + own]}
            assert covered >= set(range(row.prompt, len(row.tokens)))


def test_a_document_feeds_only_the_losses_it_is_meant_for() -> None:
    text = examples(1)[0].tokens
    rows = [Example(text, 5, Use.DRAFT_ONLY), Example(text, 5, Use.AR_ONLY)]
    batch = build(rows, Noise(sizes=(8,)), np.random.default_rng(0))
    assert batch.ar_weight[0].sum() == 0
    assert batch.draft_weight[0].sum() > 0
    assert batch.ar_weight[1].sum() > 0
    assert batch.draft_weight[1].sum() == 0


def test_what_repeats_a_third_time_is_marked() -> None:
    assert not circling([1, 2, 3, 4, 1, 2, 3, 4]).any(), "twice is allowed"
    marked = circling([1, 2, 3, 4] * 3)
    assert marked.tolist() == [False] * 11 + [True]
    assert circling([5] * 9).tolist() == [False] * 5 + [True] * 4
    assert circling([]).tolist() == []


def test_an_answer_to_avoid_makes_only_its_circles_less_likely() -> None:
    answer = [9, 4, 9, 4, 9, 4, 9, 4, 9, 4]
    row = Example(np.array([1, 6, 3, *answer]), 3, Use.AVOID)
    batch = build([row], Noise(sizes=(8,)), np.random.default_rng(0))
    weights = batch.ar_weight[0, 2 : 2 + len(answer)].tolist()
    assert weights == [0.0] * 7 + [-1.0] * 3
    assert batch.draft_weight.sum() == 0
    torch.manual_seed(0)
    model = TinyModel(TOY)
    first = losses(model, model, batch)[0]
    first.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    assert losses(model, model, batch)[0] < first


def test_unlikelihood_is_small_for_unlikely_tokens_and_bounded_for_certain_ones() -> None:
    p = torch.tensor([1e-6, 0.5, 1.0])
    values = unlikelihood(-p.log())
    torch.testing.assert_close(values[:2], -torch.log(1 - p[:2]), rtol=1e-3, atol=1e-6)
    assert torch.isfinite(values).all()


def toy_run() -> Run:
    torch.manual_seed(0)
    return Run(TinyModel(TOY), STAGE, Noise(sizes=(4, 8)), examples(40))


def test_a_resumed_run_gives_the_weights_of_an_unbroken_one(tmp_path: Path) -> None:
    unbroken = toy_run()
    unbroken.finish(tmp_path / "a", unbroken.model, minutes=60, steps=6)
    broken = toy_run()
    broken.finish(tmp_path / "b", broken.model, minutes=60, steps=3)
    resumed = toy_run()
    resumed.resume(tmp_path / "b")
    resumed.finish(tmp_path / "b", resumed.model, minutes=60, steps=3)
    assert resumed.step == unbroken.step == 6
    assert resumed.seen == unbroken.seen
    for name, weight in unbroken.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_skipping_batches_continues_over_the_end_of_an_epoch() -> None:
    data = examples(30)
    whole = schedule(data, 1, 200, 0)
    batches = [next(whole) for _ in range(40)]
    assert next(schedule(data, 1, 200, 33)) == batches[33]


def test_the_adapter_stage_leaves_the_base_and_its_ar_path_alone(tmp_path: Path) -> None:
    run = toy_run()
    before = {n: w.clone() for n, w in run.model.state_dict().items()}
    tokens = torch.arange(6, 26)[None]
    nothing = torch.zeros(1, 1, 0, 20)
    expected = run.model(tokens, torch.arange(20)[None], nothing, 20)
    add_adapter(run.model, rank=4, alpha=16.0)
    adapted = Run(run.model, Stage(**{**vars(STAGE), "rank": 4}), run.noise, run.examples)
    adapted.finish(tmp_path, run.model, minutes=60, steps=3)
    after = run.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert any(after[n].abs().sum() > 0 for n in after if "lora_B" in n)
    switch_adapter(run.model, 20)
    again = run.model(tokens, torch.arange(20)[None], nothing, 20)
    assert torch.equal(expected, again)


def published_names(layers: int) -> set[str]:
    parts = [f"self_attn.{p}_proj.weight" for p in "qkvo"]
    parts += [f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")]
    parts += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    names = {f"encoder.layers.{i}.{part}" for i in range(layers) for part in parts}
    whole = {"encoder.embed_tokens.weight", "encoder.norm.weight", "diffusion_head.weight"}
    return names | whole


def test_an_exported_file_has_the_published_names_and_reads_back(tmp_path: Path) -> None:
    model = TinyModel(TOY)
    write_weights(tmp_path, model.state_dict(), TOY, "toy")
    assert set(load_file(tmp_path / "model.safetensors")) == published_names(2)
    assert Shape.read(tmp_path) == TOY
    back = read_weights(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(back[name], weight.bfloat16().float())
    assert (tmp_path / "tokenizer.json").exists()


def test_the_shipped_file_is_small_and_complete() -> None:
    shipped = load_file(WEIGHTS / "model.safetensors")
    assert set(shipped) == published_names(6)
    assert all(w.dtype == torch.bfloat16 for w in shipped.values())
    assert sum(f.stat().st_size for f in WEIGHTS.glob("model.safetensors")) <= 12_000_000


def test_token_files_round_trip(tmp_path: Path) -> None:
    rows = [Example(e.tokens, e.prompt, Use(i % 3)) for i, e in enumerate(examples(7))]
    write_examples(tmp_path / "t.npz", rows)
    back = read_examples(tmp_path / "t.npz", longest=200)
    assert [(e.tokens.tolist(), e.prompt, e.use) for e in back] == [
        (e.tokens.tolist(), e.prompt, e.use) for e in rows
    ]


def test_bad_inputs_name_cause_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECGUIDE_DATA_DIR", raising=False)
    with pytest.raises(DataError, match="RECGUIDE_DATA_DIR"):
        data_folder(None)
    with pytest.raises(DataError, match="prepare"):
        read_examples(tmp_path / "none.npz", 100)
    with pytest.raises(DataError, match=r"train\.toml"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(DataError, match="export"):
        read_weights(tmp_path)
    with pytest.raises(DataError, match="joint"):
        read_recipe().stage("joined")
