"""`--engine sglang` of the commands that measure, where SGLang is missing or misused."""

import pytest

from recguide_core.sglang_plugin import versions

COMMANDS = ("profile", "calibrate", "tune", "bench")


@pytest.fixture
def without_sglang(monkeypatch):
    def missing(name):
        raise versions.PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", missing)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_sglang_one_line_says_so_and_one_what_to_do(
    recguide, assert_refused, without_sglang, command
):
    result = recguide(command, "--engine", "sglang")
    assert_refused(result, 1, "SGLang is not installed", 'Install "recguide[sglang]"')


@pytest.mark.parametrize("command", COMMANDS)
def test_another_release_is_refused(recguide, assert_refused, monkeypatch, command):
    monkeypatch.setattr(versions, "version", lambda name: "0.6.1")
    result = recguide(command, "--engine", "sglang")
    assert_refused(result, 1, "SGLang 0.6.1", "sglang==0.5.23")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--engine", "vllm"), "Unknown engine 'vllm'"),
        (("--tp", "2"), "--tp is for SGLang"),
        (("--engine", "sglang", "--tp", "0"), "--tp is 0"),
    ],
)
def test_impossible_engines_are_usage_errors(recguide, assert_refused, command, options, cause):
    assert_refused(recguide(command, *options), 2, cause)


def test_tune_names_the_commands_of_its_engine(recguide, assert_refused, monkeypatch, tmp_path):
    monkeypatch.setattr(versions, "version", lambda name: versions.KNOWN_GOOD[-1])
    result = recguide("tune", "--engine", "sglang", "--tables", tmp_path)
    assert_refused(result, 1, "cpu-nld-tiny-sglang", "recguide calibrate --engine sglang")


@pytest.mark.parametrize("job", [("--suite", "paper"), ("--simulate",)])
def test_suites_and_simulations_do_not_drop_the_engine(recguide, assert_refused, job):
    assert_refused(recguide("bench", *job, "--engine", "sglang"), 2, "does not run on SGLang")
