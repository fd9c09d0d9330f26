"""Drives the real command line, in process and as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from recguide_cli.app import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_png(monkeypatch):
    """Drawing figures twice would be most of these tests' time; `test_png` draws them."""
    monkeypatch.setattr("recguide_core.bench.report.png.available", lambda: False)


@pytest.fixture
def recguide(tmp_path, monkeypatch):
    """Runs a command in process, in a folder of its own and without settings from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RECGUIDE_DATA_DIR", raising=False)

    def call(*args: object, **env: str) -> Result:
        return CliRunner().invoke(app, [str(a) for a in args], env=env)

    return call


@pytest.fixture
def program(tmp_path):
    """Runs `python -c <code>` with the checkout on its path, in a folder of its own and without
    settings from outside.
    """

    def call(code: str, *args: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        env.pop("RECGUIDE_DATA_DIR", None)
        return subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    return call


@pytest.fixture
def assert_refused():
    """One line of cause, one of remedy, the exit code, nothing on stdout and no traceback."""

    def check(result: Result, code: int, cause: str, remedy: str = "") -> None:
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        lines = [x for x in result.stderr.splitlines() if x.startswith(("Error:", "Fix:"))]
        assert [line.split(":")[0] for line in lines] == ["Error", "Fix"], result.stderr
        assert cause in lines[0]
        assert remedy in lines[1]
        assert len(lines[1]) > len("Fix: ")
        assert "Traceback" not in result.output

    return check
