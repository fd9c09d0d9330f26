"""`doctor --model`: every fault of a checkpoint folder at once, each with a remedy."""

import json

import pytest
from checkpoints import (
    EOS,
    MASK,
    published_adapter,
    published_config,
    published_tensors,
    write_checkpoint,
)

from recguide_core.model.checkup import check_folder
from recguide_core.model.registry import bundled_folder


def parts(folder, serious=None):
    return [f.part for f in check_folder(folder) if serious is None or f.serious == serious]


def text(folder):
    return " ".join(f"{f.cause} {f.remedy}" for f in check_folder(folder))


def edit(path, **changes):
    raw = json.loads(path.read_text())
    raw |= changes
    path.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


@pytest.mark.parametrize("size", ["3b", "8b", "14b"])
@pytest.mark.parametrize("shards", [1, 3])
def test_published_layouts_have_no_fault(tmp_path, size, shards):
    folder = write_checkpoint(tmp_path / "m", published_config(size), shards=shards)
    assert check_folder(folder) == []


def test_the_bundled_model_can_be_served():
    assert parts(bundled_folder(), serious=True) == []


def test_a_missing_adapter_is_a_loss_and_no_obstacle(tmp_path):
    folder = write_checkpoint(tmp_path / "m", adapter={})
    (fault,) = check_folder(folder)
    assert fault.part == "adapter" and not fault.serious
    assert "shorter" in fault.cause


def test_a_vision_model_is_refused_politely(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    edit(folder / "config.json", model_type="nemotron_labs_diffusion_vlm")
    (fault,) = check_folder(folder)
    assert "vision-language" in fault.cause and "text checkpoint" in fault.remedy


def test_no_folder_or_no_config_stops_the_check(tmp_path):
    (fault,) = check_folder(tmp_path)
    assert fault.part == "config" and "config.json" in fault.cause


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "llama"}, "llama"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"rope_parameters": None}, "rope_parameters"),
        ({"hidden_size": 96}, "shape"),
        ({"num_hidden_layers": 4}, "missing"),
        ({"vocab_size": 200}, "tokenizer has"),
        ({"eos_token_id": MASK}, "same id"),
        ({"mask_token_id": 384, "vocab_size": 500}, "no token of the tokenizer"),
    ],
)
def test_a_config_that_does_not_fit_is_named(tmp_path, changes, word):
    folder = write_checkpoint(tmp_path / "m")
    edit(folder / "config.json", **changes)
    assert word in text(folder)
    assert parts(folder, serious=True)


def test_weights_of_another_naming_are_recognised(tmp_path):
    config = published_config()
    tensors = published_tensors(config)
    renamed = {name.replace("encoder.", "model."): t for name, t in tensors.items()}
    folder = write_checkpoint(tmp_path / "m", config, tensors=renamed)
    assert "names such as model." in text(folder)


def test_a_missing_head_means_the_embedding(tmp_path):
    config = published_config()
    tensors = published_tensors(config)
    del tensors["diffusion_head.weight"]
    folder = write_checkpoint(tmp_path / "m", config, tensors=tensors)
    (fault,) = check_folder(folder)
    assert "embedding" in fault.cause and not fault.serious


def test_a_lost_shard_and_a_broken_file_are_told_apart(tmp_path):
    folder = write_checkpoint(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"no header")
    found = text(folder)
    assert "model-00002-of-00003.safetensors is missing" in found
    assert "model-00003-of-00003.safetensors is no readable" in found


def test_an_adapter_on_other_modules_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    edit(folder / "linear_spec_lora" / "adapter_config.json", target_modules=["q_proj"])
    assert "q_proj" in text(folder)


def test_an_adapter_of_another_size_is_refused(tmp_path):
    adapter = published_adapter(published_config("3b"))
    folder = write_checkpoint(tmp_path / "m", published_config("14b"), adapter=adapter)
    assert parts(folder, serious=True) == ["adapter"]


def test_a_template_that_drops_the_user_is_caught(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("hello")
    assert "leaves the user's words out" in text(folder)
    (folder / "chat_template.jinja").write_text("{% if %}")
    assert check_folder(folder)
    (folder / "chat_template.jinja").unlink()
    assert "only completions" in text(folder)


def test_tokenizer_files_are_checked(tmp_path):
    folder = write_checkpoint(tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer" in parts(folder, serious=True)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in text(folder)


def test_several_faults_are_reported_together_serious_ones_first(tmp_path):
    folder = write_checkpoint(tmp_path / "m", adapter={})
    edit(folder / "config.json", hidden_size=96, eos_token_id=[EOS, MASK])
    (folder / "chat_template.jinja").unlink()
    found = check_folder(folder)
    assert {"weights", "ids", "template", "adapter"} <= {f.part for f in found}
    order = [f.serious for f in found]
    assert order == sorted(order, reverse=True)
