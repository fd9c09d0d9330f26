"""Reading checkpoints: layouts that must load, and faults that must name themselves."""

import json
import re

import pytest
import torch
from checkpoints import (
    MASK,
    published_adapter,
    published_config,
    published_tensors,
    write_checkpoint,
)
from packed import commit_prompt, make_pool
from safetensors.torch import save_file

from recguide_core.errors import DataError, RecGuideError, UsageError
from recguide_core.model.config import config_from_dict, read_config
from recguide_core.model.registry import load_model, resolve

TOKENS = [5, 9, 200, 311, 42, 7]


def load(folder):
    return load_model(str(folder), max_positions=64)


def logits(folder) -> torch.Tensor:
    model = load(folder)
    return commit_prompt(model, make_pool(model, 32), 0, TOKENS)


def edit(folder, name, **changes):
    path = folder / name
    content = json.loads(path.read_text()) if path.is_file() else {}
    content |= changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v != "absent"}))


# -- layouts --------------------------------------------------------------------------------


def test_sharded_equals_single(tmp_path):
    single = logits(write_checkpoint(tmp_path / "one"))
    assert torch.equal(single, logits(write_checkpoint(tmp_path / "three", shards=3)))


def test_tensors_that_we_do_not_need_are_ignored(tmp_path):
    tensors = published_tensors(published_config())
    extra = dict(tensors, **{"encoder.rotary_emb.inv_freq": torch.zeros(8)})
    plain = logits(write_checkpoint(tmp_path / "plain"))
    assert torch.equal(plain, logits(write_checkpoint(tmp_path / "extra", tensors=extra)))


def test_both_rope_spellings(tmp_path):
    new = published_config()
    old = dict(new)
    block = dict(old.pop("rope_parameters"))
    old["rope_theta"] = block.pop("rope_theta")
    block["type"] = block.pop("rope_type")
    old["rope_scaling"] = block
    assert config_from_dict(old) == config_from_dict(new)
    same = logits(write_checkpoint(tmp_path / "new", new))
    assert torch.equal(same, logits(write_checkpoint(tmp_path / "old", old)))


def test_rope_type_default_and_no_rope_block_at_all(tmp_path):
    plain = published_config(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    config = config_from_dict(plain)
    assert (config.rope.kind, config.rope.query_beta) == ("default", 0.0)
    bare = published_config(rope_parameters=None, rope_theta=10000.0)
    same = logits(write_checkpoint(tmp_path / "plain", plain))
    assert torch.equal(same, logits(write_checkpoint(tmp_path / "bare", bare)))


def test_head_dim_is_read_and_only_derived_when_absent():
    assert config_from_dict(published_config("3b")).head_dim == 16
    assert config_from_dict(published_config("3b", head_dim=None)).head_dim == 12


def test_tied_head_and_a_head_left_out(tmp_path):
    tied = published_config(tie_word_embeddings=True)
    tensors = published_tensors(tied)
    said = load(write_checkpoint(tmp_path / "said", tied, tensors=tensors))
    left = load(write_checkpoint(tmp_path / "left", tensors=tensors))
    for model in (said, left):
        assert model.transformer.weights.head is model.transformer.weights.embed


def test_missing_adapter_is_no_error(tmp_path):
    assert load(write_checkpoint(tmp_path, adapter={})).transformer.adapter is None


def test_adapter_scale_is_alpha_over_rank(tmp_path):
    config = published_config()
    adapter = load(write_checkpoint(tmp_path, config)).transformer.adapter
    raw = published_adapter(config)
    base = "base_model.model.encoder.layers.2.self_attn.o_proj."
    assert torch.equal(adapter.down[2], raw[base + "lora_A.weight"])
    assert torch.allclose(adapter.up[2], 4 * raw[base + "lora_B.weight"])


def test_generation_config_wins_over_config(tmp_path):
    folder = write_checkpoint(tmp_path)
    edit(folder, "generation_config.json", eos_token_id=[11, 13])
    assert read_config(folder).eos_ids == (11, 13)


def test_hash_follows_weights_config_and_adapter(tmp_path):
    first = load(write_checkpoint(tmp_path / "a")).hash
    assert first == load(write_checkpoint(tmp_path / "b")).hash
    other = published_tensors(published_config(), seed=5)
    assert first != load(write_checkpoint(tmp_path / "c", tensors=other)).hash
    louder = {k: 2 * v for k, v in published_adapter(published_config()).items()}
    assert first != load(write_checkpoint(tmp_path / "d", adapter=louder)).hash


def test_tokenizer_and_template(tmp_path):
    model = load(write_checkpoint(tmp_path))
    text = model.render([{"role": "user", "content": "Hä?"}])
    assert text == "<s><|im_start|>user\nHä?<|im_end|>\n<|im_start|>assistant\n"
    ids = model.tokenizer.encode(text)
    assert (ids[0], ids[1]) == (1, 10)
    assert model.tokenizer.decode(model.tokenizer.encode("Hä? é 漢")) == "Hä? é 漢"
    assert model.tokenizer.decode(ids) == "user\nHä?\nassistant\n"


# -- faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("value", [None, "64", 1.5, True])
def test_a_bad_config_key_names_itself(key, value):
    config = published_config(**{key: value})
    with pytest.raises(DataError, match=key):
        config_from_dict(config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_parameters": {"rope_type": "llama3"}}, "llama3"),
        ({"num_key_value_heads": 3}, "KV heads"),
        ({"mask_token_id": 5000}, "mask_token_id"),
        ({"eos_token_id": 384}, "eos"),
        ({"eos_token_id": []}, "eos_token_id"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"mask_token_id": "x"}, "mask_token_id"),
        ({"num_key_value_heads": "x"}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "x"}}, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": None, "factor": 2}}, "rope_theta"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"hidden_size": -8}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_impossible_values_are_named(changes, named):
    with pytest.raises(DataError, match=named):
        config_from_dict(published_config(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "nemotron_labs_diffusion_vlm"}, {"vision_config": {"hidden_size": 1024}}],
    ids=str,
)
def test_the_vision_model_is_refused_politely(tmp_path, changes):
    folder = write_checkpoint(tmp_path, published_config() | changes)
    with pytest.raises(UsageError, match="vision-language") as caught:
        load(folder)
    assert "text checkpoint" in caught.value.remedy


def test_missing_and_misshapen_tensors(tmp_path):
    config = published_config()
    name = "encoder.layers.1.self_attn.k_proj.weight"
    tensors = published_tensors(config)
    short = {k: v for k, v in tensors.items() if k != name}
    with pytest.raises(DataError, match=name):
        load(write_checkpoint(tmp_path / "short", tensors=short))
    wrong = dict(tensors, **{name: torch.zeros(5, 64)})
    with pytest.raises(DataError, match=r"k_proj.weight has shape \(5, 64\)"):
        load(write_checkpoint(tmp_path / "wrong", tensors=wrong))


def test_a_config_of_another_size_is_caught(tmp_path):
    folder = write_checkpoint(tmp_path)
    (folder / "config.json").write_text(json.dumps(published_config("14b")))
    with pytest.raises(DataError, match=re.escape("config.json implies")):
        load(folder)


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=re.escape("config.json")):
        load(tmp_path)
    folder = write_checkpoint(tmp_path / "a", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DataError, match="model-00002-of-00002"):
        load(folder)
    folder = write_checkpoint(tmp_path / "b")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=re.escape("model.safetensors")):
        load(folder)
    folder = write_checkpoint(tmp_path / "c")
    (folder / "linear_spec_lora" / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match=re.escape("adapter_model.safetensors")):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "linear_spec_lora/adapter_config.json",
        "model.safetensors",
        "linear_spec_lora/adapter_model.safetensors",
    ],
)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[1, 2]"])
def test_a_broken_file_is_named(tmp_path, name, content):
    folder = write_checkpoint(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(name.rsplit("/", 1)[-1])):
        load(folder)


def test_adapter_faults(tmp_path):
    folder = write_checkpoint(tmp_path / "a")
    edit(folder, "linear_spec_lora/adapter_config.json", target_modules=["q_proj", "o_proj"])
    with pytest.raises(DataError, match="o_proj alone"):
        load(folder)
    edit(folder, "linear_spec_lora/adapter_config.json", target_modules="o_proj")
    load(folder)
    for value in ("absent", 0, "x"):
        edit(folder, "linear_spec_lora/adapter_config.json", r=value)
        with pytest.raises(DataError, match="'r'"):
            load(folder)
    folder = write_checkpoint(tmp_path / "b")
    adapter = published_adapter(published_config())
    adapter.pop("base_model.model.encoder.layers.1.self_attn.o_proj.lora_B.weight")
    save_file(adapter, folder / "linear_spec_lora" / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"layers.1.self_attn.o_proj.lora_B.weight"):
        load(folder)


def test_unknown_names():
    with pytest.raises(UsageError, match="nld-tiny"):
        resolve("nld-tinny")
    with pytest.raises(UsageError):
        load_model("nld-tiny", dtype="float33")
    with pytest.raises(UsageError):
        resolve("./no/such/folder")
    with pytest.raises(RecGuideError, match=r"recguide\[hub\]|could not be fetched"):
        resolve("nvidia/no-such-checkpoint")


def test_the_bundled_model_loads_with_its_template():
    model = load_model("nld-tiny")
    assert model.tokenizer.encode(model.render([{"role": "user", "content": "2 + 2"}]))
    assert model.config.mask_id != MASK
    assert model.config.vocab == model.transformer.weights.embed.shape[0]
