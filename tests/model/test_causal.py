"""Causal logits against an independent implementation, the Ministral-3 family of transformers."""

import json

import pytest
import torch
from checkpoints import (
    EOS,
    VOCAB,
    published_adapter,
    published_config,
    published_tensors,
    write_checkpoint,
)
from dense import dense_logits
from packed import commit_prompt, make_pool, run_rows

from recguide_core.model.config import config_from_dict
from recguide_core.model.registry import load_model
from recguide_core.model.registry import published_config as geometry
from recguide_core.model.rope import attention_factor, inverse_frequencies
from recguide_core.records import Row

TOLERANCE = 1e-4
SIZES = ("3b", "8b", "14b")
CARRIED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
)


def ministral(config: dict, tensors: dict):
    """The same weights as `Ministral3ForCausalLM`."""
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra dev)")
    theirs = transformers.Ministral3Config(
        **{
            key: config[key]
            for key in [
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "rms_norm_eps",
                "max_position_embeddings",
                "tie_word_embeddings",
            ]
        },
        rope_parameters=dict(config["rope_parameters"]),
        pad_token_id=0,
        attn_implementation="eager",
    )
    model = transformers.Ministral3ForCausalLM(theirs).eval()
    names = {
        name.replace("encoder.", "model.").replace("diffusion_head", "lm_head"): tensor
        for name, tensor in tensors.items()
    }
    left = model.load_state_dict(names, strict=False)
    assert not left.unexpected_keys
    assert set(left.missing_keys) <= {"lm_head.weight"}
    if config["tie_word_embeddings"]:
        model.tie_weights()
    return model


def their_logits(model, tokens: list[int], first: int = 0) -> torch.Tensor:
    positions = torch.arange(first, first + len(tokens))[None]
    with torch.inference_mode():
        return model(torch.tensor([tokens]), position_ids=positions, use_cache=False).logits[0]


def some_tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_prefill_equals_transformers(tmp_path, size):
    config = published_config(size)
    tensors = published_tensors(config)
    model = load_model(str(write_checkpoint(tmp_path, config)), max_positions=64)
    tokens = some_tokens(40)
    ours = commit_prompt(model, make_pool(model, 64), 0, tokens)
    theirs = their_logits(ministral(config, tensors), tokens)
    assert theirs.std() > 1, "the comparison needs logits that differ"
    assert (ours - theirs).abs().max() <= TOLERANCE


def test_chunked_prefill_equals_transformers(tmp_path):
    config = published_config()
    model = load_model(str(write_checkpoint(tmp_path, config)), max_positions=64)
    tokens = some_tokens(40)
    theirs = their_logits(ministral(config, published_tensors(config)), tokens)
    for chunk in (1, 7, 16, 39):
        ours = commit_prompt(model, make_pool(model, 64), 0, tokens, chunk)
        assert (ours - theirs).abs().max() <= TOLERANCE


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [16380, 16384, 32765, 49152])
def test_positions_above_16384(tmp_path, size, first):
    """A short sequence far out: YaRN there, and the query temperature that starts at 16384."""
    config = published_config(size)
    model = load_model(str(write_checkpoint(tmp_path, config)), max_positions=first + 16)
    tokens = some_tokens(12, seed=first)
    pool = make_pool(model, 16)
    pool.reserve(0, len(tokens))
    pool.begin(0, len(tokens))
    _, ours = run_rows(model, pool, [Row(0, tokens, first, commit=True)])
    theirs = their_logits(ministral(config, published_tensors(config)), tokens, first)
    assert (ours - theirs).abs().max() <= TOLERANCE
    plain = dict(config["rope_parameters"], llama_4_scaling_beta=0.0)
    cold = their_logits(
        ministral(dict(config, rope_parameters=plain), published_tensors(config)), tokens, first
    )
    assert (ours - cold).abs().max() > 100 * TOLERANCE, "the temperature must be visible"


def test_a_sequence_that_crosses_16384(tmp_path):
    """A real prompt of 16400 tokens in chunks, prefix and all."""
    config = published_config(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    tensors = published_tensors(config)
    model = load_model(str(write_checkpoint(tmp_path, config)), max_positions=16400)
    tokens = some_tokens(16400)
    pool = make_pool(model, 16400)
    pool.reserve(0, 16400)
    for first in range(0, 16384, 1024):
        pool.begin(0, 1024)
        run_rows(model, pool, [Row(0, tokens[first : first + 1024], first, commit=True)])
        pool.commit(0, 1024)
    pool.begin(0, 16)
    _, ours = run_rows(model, pool, [Row(0, tokens[16384:], 16384, commit=True)])
    theirs = _tail_logits(ministral(config, tensors), tokens, 16384)
    assert (ours - theirs).abs().max() <= TOLERANCE


def _tail_logits(model, tokens: list[int], first: int) -> torch.Tensor:
    """transformers over the whole sequence in cached pieces; logits from `first` on."""
    model.set_attn_implementation("sdpa")
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        for start in range(0, first, 2048):
            model.model(
                torch.tensor([tokens[start : min(start + 2048, first)]]),
                cache=cache,
                use_cache=True,
            )
        return model(torch.tensor([tokens[first:]]), cache=cache, use_cache=True).logits[0]


def test_small_original_context_scales_the_query_early(tmp_path):
    rope = dict(published_config()["rope_parameters"], original_max_position_embeddings=16)
    config = published_config(rope_parameters=rope, max_position_embeddings=256)
    model = load_model(str(write_checkpoint(tmp_path, config)))
    tokens = some_tokens(60)
    ours = commit_prompt(model, make_pool(model, 64), 0, tokens)
    theirs = their_logits(ministral(config, published_tensors(config)), tokens)
    assert (ours - theirs).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"mscale": None, "mscale_all_dim": None},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale_all_dim": None},
        {"attention_factor": 1.25},
        {"factor": 0.25},
        {"beta_fast": 16.0, "beta_slow": 2.0},
    ],
    ids=str,
)
def test_yarn_variants_equal_transformers(tmp_path, changes):
    rope = published_config()["rope_parameters"] | changes
    rope = {key: value for key, value in rope.items() if value is not None}
    config = published_config(rope_parameters=rope)
    model = load_model(str(write_checkpoint(tmp_path, config)), max_positions=64)
    tokens = some_tokens(30)
    ours = commit_prompt(model, make_pool(model, 64), 0, tokens)
    theirs = their_logits(ministral(config, published_tensors(config)), tokens)
    assert (ours - theirs).abs().max() <= TOLERANCE


def test_tied_head_equals_transformers(tmp_path):
    config = published_config(tie_word_embeddings=True)
    tensors = published_tensors(config)
    model = load_model(str(write_checkpoint(tmp_path, config)), max_positions=64)
    tokens = some_tokens(20)
    ours = commit_prompt(model, make_pool(model, 64), 0, tokens)
    assert (ours - their_logits(ministral(config, tensors), tokens)).abs().max() <= 10 * TOLERANCE


def test_published_rope_facts():
    """Attention factor 1, and the ramp over pairs 20..37 (theta 1e6) and 13..25 (theta 1e9)."""
    for name, low, high in (("nld-3b", 20, 37), ("nld-8b", 20, 37), ("nld-14b", 13, 25)):
        rope = geometry(name).rope
        assert attention_factor(rope) == 1.0
        steps = torch.arange(0, 128, 2, dtype=torch.float32) / 128
        ratio = inverse_frequencies(rope, 128) * rope.theta**steps
        assert torch.allclose(ratio[: low + 1], torch.ones(low + 1))
        assert torch.allclose(ratio[high:], torch.full((64 - high,), 1 / 16))
        assert ((ratio[low + 1 : high] < 1) & (ratio[low + 1 : high] > 1 / 16)).all()
        assert geometry(name).head_dim == 128


def test_the_dense_reference_of_these_tests_equals_transformers(tmp_path):
    """The second reference is itself held to the first."""
    config = published_config("14b")
    tensors = published_tensors(config)
    tokens = some_tokens(30)
    mask = torch.ones(30, 30, dtype=torch.bool).tril()
    dense = dense_logits(config, tensors, torch.tensor(tokens), torch.arange(30), mask)
    assert (dense - their_logits(ministral(config, tensors), tokens)).abs().max() <= TOLERANCE
    assert published_adapter(config)
    assert config_from_dict(json.loads(json.dumps(config))).eos_ids == (EOS,)
