"""Which engine, what is missing, and the command line that starts SGLang."""

import json

import pytest
from policy_files import write_policy_files

from recguide_core.errors import DataError, MismatchError, RecGuideError, UsageError
from recguide_core.model.registry import bundled_folder
from recguide_core.model.weights import content_hash
from recguide_core.sglang_plugin import launch
from recguide_core.sglang_plugin.launch import ServerConfig, choose_engine, server_command
from recguide_core.sglang_plugin.settings import VARIABLE, PluginSettings


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setattr(launch, "weights_of", lambda model: f"no weights of {model}")


def test_auto_takes_sglang_on_cuda_and_the_embedded_engine_elsewhere(monkeypatch):
    assert choose_engine("auto", "x", cuda=True, sglang="0.5.23")[0] == "sglang"
    assert choose_engine("auto", "x", cuda=False, sglang="0.5.23") == ("embedded", "no CUDA device")
    assert choose_engine("embedded", "x") == ("embedded", "asked for")
    monkeypatch.setattr(launch, "installed_version", lambda: None)
    assert choose_engine("auto", "x", cuda=True) == ("embedded", "SGLang is not installed")


def test_auto_refuses_an_unknown_release_rather_than_trying_it():
    with pytest.raises(MismatchError, match=r"0\.6\.0"):
        choose_engine("auto", "x", cuda=True, sglang="0.6.0")
    with pytest.raises(UsageError, match="engin"):
        choose_engine("vllm", "x")


def test_a_published_model_without_gpu_and_weights_fails_in_one_line(no_hub, monkeypatch):
    monkeypatch.setattr(launch, "installed_version", lambda: None)
    with pytest.raises(RecGuideError) as caught:
        choose_engine("auto", "nld-14b", cuda=False)
    assert caught.value.cause == (
        "nld-14b cannot be served here: no CUDA device, SGLang is not installed, "
        "no weights of nld-14b."
    )
    assert "\n" not in caught.value.cause + caught.value.remedy


def test_the_command_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "has_cuda", lambda: True)
    monkeypatch.setattr(launch, "device_name", lambda: "b200")
    config = ServerConfig(
        "nld-tiny", tp=4, dp=2, context=4096, extra=("--chunked-prefill-size", "2048")
    )
    made = server_command(config, tmp_path / "s.json")
    line = " ".join(made.argv)
    for words in (
        "-m sglang.launch_server",
        f"--model-path {bundled_folder()}",
        "--speculative-algorithm RECGUIDE",
        "--disable-cuda-graph",
        "--enable-metrics",
        "--tp-size 4 --dp-size 2",
        "--context-length 4096",
        "--dtype auto",
    ):
        assert words in line
    assert made.argv[-2:] == ["--chunked-prefill-size", "2048"]
    assert "--device" not in made.argv
    assert made.env[VARIABLE] == str(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text())["device"] == "b200"
    assert any("recguide tune" in note for note in made.notes), "no policy: say what to run"


def test_the_command_for_a_cpu(tmp_path):
    made = server_command(ServerConfig("nld-tiny", device="cpu"), tmp_path / "s.json")
    line = " ".join(made.argv)
    assert "--device cpu" in line and "--attention-backend torch_native" in line
    assert "--dtype float32" in line
    assert made.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0"
    extra = ("--attention-backend", "triton")
    made = server_command(ServerConfig("nld-tiny", device="cpu", extra=extra), tmp_path / "s.json")
    assert made.argv.count("--attention-backend") == 1


def test_a_drafter_goes_through_sglangs_own_dflash(tmp_path):
    made = server_command(
        ServerConfig("nld-tiny", drafter="some/drafter", device="cpu"), tmp_path / "s.json"
    )
    line = " ".join(made.argv)
    assert "--speculative-algorithm DFLASH --speculative-draft-model-path some/drafter" in line
    assert "RECGUIDE" not in line and "--disable-cuda-graph" not in line


@pytest.mark.parametrize("flag", ["--model-path", "--speculative-algorithm=EAGLE", "--port"])
def test_flags_that_recguide_sets_are_refused_after_the_dashes(tmp_path, flag):
    with pytest.raises(UsageError, match=flag.split("=")[0]):
        server_command(ServerConfig("nld-tiny", extra=(flag, "x")), tmp_path / "s.json")


def test_a_policy_is_checked_against_model_and_device(tmp_path):
    ours = write_policy_files(tmp_path, content_hash(bundled_folder()))
    config = ServerConfig(
        "nld-tiny", plugin=PluginSettings(method="recguide", policy=str(ours)), device="cpu"
    )
    made = server_command(config, tmp_path / "s.json")
    assert any(str(ours) in note for note in made.notes)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    other = write_policy_files(foreign, "0123456789abcdef")
    config = ServerConfig("nld-tiny", plugin=PluginSettings(policy=str(other)), device="cpu")
    with pytest.raises(MismatchError, match="model hash"):
        server_command(config, tmp_path / "s.json")


def test_an_adaptive_method_without_tables_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recguide_core.tuning.guidance.shipped_folder", lambda: tmp_path)
    config = ServerConfig("nld-tiny", plugin=PluginSettings(method="adaptive"), device="cpu")
    with pytest.raises(DataError, match="recguide tune"):
        server_command(config, tmp_path / "s.json")
