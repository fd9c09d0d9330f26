"""`recguide serve` between its two engines, from the command line."""

import pytest
from typer.testing import CliRunner

from recguide_cli.app import app
from recguide_cli.commands import serve_sglang
from recguide_core.sglang_plugin import launch


def serve(*args):
    return CliRunner().invoke(app, ["serve", *args])


@pytest.fixture
def executed(monkeypatch):
    """Collects what would have replaced the process."""
    calls = []

    def become(program, argv, env):
        calls.append((argv, env))
        raise SystemExit(0)

    monkeypatch.setattr(serve_sglang.os, "execvpe", become)
    monkeypatch.setattr(launch, "installed_version", lambda: "0.5.23")
    return calls


def test_a_published_model_fails_here_in_one_line(monkeypatch):
    monkeypatch.setattr(launch, "has_cuda", lambda: False)
    monkeypatch.setattr(launch, "installed_version", lambda: None)
    monkeypatch.setattr(launch, "weights_of", lambda model: f"no weights of {model}")
    result = serve("--model", "nld-14b")
    assert result.exit_code == 1
    lines = [x for x in result.stderr.splitlines() if x.startswith("Error:")]
    assert len(lines) == 1
    for word in ("nld-14b", "no CUDA device", "SGLang is not installed", "no weights"):
        assert word in lines[0]
    assert "Traceback" not in result.output


def test_the_options_reach_sglang(executed):
    result = serve(
        "--engine", "sglang", "--model", "nld-tiny", "--method", "linear", "--block-size", "8",
        "--device", "cpu", "--port", "31999", "--", "--chunked-prefill-size", "128",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    ((argv, env),) = executed
    assert argv[-2:] == ["--chunked-prefill-size", "128"]
    assert argv[argv.index("--port") + 1] == "31999"
    assert env["RECGUIDE_SGLANG_CONFIG"].endswith("sglang.json")
    assert "model nld-tiny" in result.stderr and "policy" in result.stderr


def test_a_drafter_means_sglangs_dflash(executed):
    serve("--engine", "sglang", "--device", "cpu", "--drafter", "some/drafter")
    ((argv, _),) = executed
    assert argv[argv.index("--speculative-algorithm") + 1] == "DFLASH"
    result = serve("--engine", "sglang", "--drafter", "x", "--method", "linear")
    assert result.exit_code == 2 and "exclude each other" in result.stderr


@pytest.mark.parametrize(
    "options", [["--layout", "uniform"], ["--tp", "2"], ["--drafter", "x"], ["--", "--foo"]]
)
def test_the_embedded_engine_drops_no_sglang_option_silently(options):
    result = serve("--engine", "embedded", *options)
    assert result.exit_code == 2
    assert "is for SGLang" in result.stderr


def test_an_unknown_engine_is_refused():
    result = serve("--engine", "vllm")
    assert result.exit_code == 2 and "embedded" in result.stderr
