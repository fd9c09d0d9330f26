"""`recguide doctor` says what there is and why something cannot be used."""

import json
from pathlib import Path


def test_every_back_end_has_a_reason(recguide):
    result = recguide("doctor", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["schema"] == "recguide.doctor/1"
    assert report["versions"]["python"]
    assert report["devices"][0]["name"] == "cpu"
    back_ends = {b["name"]: b for b in report["back_ends"]}
    assert set(back_ends) == {"torch-cpu", "torch-cuda", "triton", "flashinfer", "sglang"}
    assert back_ends["torch-cpu"]["usable"]
    for back_end in back_ends.values():
        assert back_end["reason"]
        assert back_end["usable"] == (back_end["reason"] == "ready")


def test_human_view_keeps_brackets(recguide, monkeypatch):
    from recguide_core import inventory

    monkeypatch.setattr(inventory.importlib.util, "find_spec", lambda name: None)
    result = recguide("doctor")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "recguide[sglang]" in result.stderr


def test_model_is_described(recguide):
    report = json.loads(recguide("doctor", "--model", "nld-tiny", "--json").stdout)
    assert report["model"]["mask_id"] == 3
    assert report["model"]["chat_template"] is True


def test_unknown_model(recguide, assert_refused):
    assert_refused(recguide("doctor", "--model", "nld-tinny"), 2, "nld-tinny", "nld-tiny")


def test_faults_of_a_folder_are_listed_and_fail(recguide, assert_refused, tmp_path):
    from recguide_core.model.registry import bundled_folder

    folder = tmp_path / "half"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((bundled_folder() / name).read_bytes())
    result = recguide("doctor", "--model", folder, "--json")
    faults = {fault["part"]: fault for fault in json.loads(result.stdout)["faults"]}
    assert faults["weights"]["serious"]
    assert not faults["adapter"]["serious"]
    assert_refused(recguide("doctor", "--model", folder), 1, "model.safetensors", "again")


def test_what_only_a_gpu_can_prove_is_listed_with_an_existing_test(recguide):
    report = json.loads(recguide("doctor", "--gpu-unproven", "--json").stdout)
    assert report["entries"]
    for entry in report["entries"]:
        path, _, test = entry["input_test"].partition("::")
        text = (Path(__file__).parents[1] / "kernels" / path).resolve().read_text(encoding="utf-8")
        assert f"def {test}" in text, entry
