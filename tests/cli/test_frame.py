"""The frame of the command line: help, version, speed of start, exit codes."""

import pytest

from recguide_cli import console
from recguide_cli.app import COMMANDS
from recguide_core.errors import UsageError

RUN = "import sys; sys.argv[0] = 'recguide'; from recguide_cli.app import main; main()"
LOADED = f"""
import sys
try:
    {RUN.replace("; ", chr(10) + "    ")}
except SystemExit:
    pass
heavy = [m for m in ("torch", "numpy", "pyarrow", "transformers", "matplotlib") if m in sys.modules]
print("HEAVY", heavy)
"""


def test_help_names_every_command(recguide):
    result = recguide("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert name in result.output


def test_no_arguments_shows_the_help(recguide):
    assert recguide().output == recguide("--help").output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(recguide, name):
    result = recguide(name, "--help")
    assert result.exit_code == 0
    assert f"recguide {name}" in result.output
    assert name == "serve" or "--json" in result.output


@pytest.mark.parametrize("args", [("--help",), ("bench", "--help"), ("profile", "--help")])
def test_help_loads_nothing_heavy(program, args):
    result = program(LOADED, *args)
    assert "Usage" in result.stdout
    assert "HEAVY []" in result.stdout


def test_version(recguide):
    result = recguide("--version")
    assert result.exit_code == 0
    assert result.stdout.strip().count(".") == 2


@pytest.mark.parametrize(
    ("args", "cause"),
    [
        (("bensh",), "bensh"),
        (("bench", "--modle", "x"), "--modle"),
        (("bench", "--requests", "many"), "--requests"),
        (("bench", "--max-tokens", "1.5"), "--max-tokens"),
        (("bench", "--concurrency", "1,x"), "1,x"),
        (("bench", "--methods", "ar,,linear"), "ar,,linear"),
    ],
)
def test_wrong_use_exits_with_two(recguide, args, cause):
    result = recguide(*args)
    assert result.exit_code == 2
    assert cause in result.stderr
    assert "Fix:" in result.stderr
    assert result.stdout == ""


def test_exit_codes_of_the_program(program):
    assert program(RUN, "--version").returncode == 0
    assert program(RUN, "bench", "--methods", "nope").returncode == 2
    assert program(RUN, "bench", "--data", "humaneval").returncode in (1, 2)


def test_json_has_no_nan():
    assert console.finite({"a": [float("nan"), 1.5], "b": float("inf")}) == {
        "a": [None, 1.5],
        "b": None,
    }


def test_number_cells():
    assert console.number(None) == console.number(float("nan")) == "–"
    assert console.number(1234.567) == "1,234.57"
    assert console.number(12345) == "12,345"


@pytest.mark.parametrize("text", ["", "1,", "a", "1.5", "1;2"])
def test_integer_lists_are_checked(text):
    with pytest.raises(UsageError, match="--concurrency"):
        console.integers(text, "--concurrency")
