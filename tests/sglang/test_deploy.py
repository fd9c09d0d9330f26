"""The image and the unit in deploy/ agree with the package; neither is built or started here."""

import importlib.metadata
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.main import get_command

from recguide_cli.app import app
from recguide_core.sglang_plugin.versions import KNOWN_GOOD

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "recguide.service").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def installed_by_pip():
    """What the Dockerfile's pip lines install."""
    return [word for line in re.findall(r"pip install (.*)", DOCKERFILE)
            for word in shlex.split(line.split("&&")[0])]  # fmt: skip


def flags(command):
    """Options of a `recguide` subcommand."""
    found = get_command(app).commands[command].params
    return {name for option in found for name in (*option.opts, *option.secondary_opts)}


def test_the_base_image_is_pinned():
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == 1
    name, _, tag = images[0].partition(":")
    assert name == "nvidia/cuda"
    assert re.fullmatch(r"\d+\.\d+\.\d+-devel-ubuntu\d\d\.\d\d", tag), "kernels are compiled there"


def test_pip_lines_are_those_of_the_project():
    engine, ours = installed_by_pip()
    assert engine in EXTRAS["sglang"], "the layer of the engine installs what the extra asks for"
    assert Requirement(engine).specifier.contains(KNOWN_GOOD[-1])
    named = re.fullmatch(r"/src\[(.*)\]", ours)
    assert named and set(named[1].split(",")) <= set(EXTRAS)
    python = re.search(r"python(\d\.\d+) -m venv", DOCKERFILE)
    assert python and Requirement(f"x{PROJECT['requires-python']}").specifier.contains(python[1])


def test_what_the_image_and_the_unit_run_are_options_of_serve():
    entry = re.search(r'^ENTRYPOINT \["(.*)"\]', DOCKERFILE, re.MULTILINE)
    words = re.search(r"^CMD \[(.*)\]", DOCKERFILE, re.MULTILINE)
    assert entry and entry[1] in PROJECT["scripts"] and words
    for line in (words[1].replace('"', "").replace(",", ""),
                 re.search(r"^ExecStart=\S+/recguide (.*)", UNIT, re.MULTILINE)[1]):  # fmt: skip
        command, *rest = line.split()
        assert command == "serve"
        assert {word for word in rest if word.startswith("--")} <= flags("serve")
    assert "EXPOSE 30000" in DOCKERFILE and "30000" in words[1]


def test_the_units_variables_are_set():
    settings = (ROOT / "deploy" / "server.env").read_text(encoding="utf-8")
    known = set(re.findall(r"^#? ?(\w+)=", settings, re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)\}", UNIT)) <= known


def test_the_image_leaves_out_environments_and_runs():
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", ".venv-*", "runs", "build"} <= set(ignored)


def test_the_projects_ranges_admit_what_sglang_pins():
    """Otherwise pip could not install the extra at all."""
    pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")
    pins = {}
    for text in importlib.metadata.requires("sglang") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            pins[requirement.name] = requirement
    checked = 0
    for text in (*PROJECT["dependencies"], *EXTRAS["sglang"]):
        ours = Requirement(text)
        theirs = pins.get(ours.name)
        exact = [s.version for s in theirs.specifier if s.operator == "=="] if theirs else []
        for version in exact:
            assert ours.specifier.contains(version), f"{theirs} is outside {ours}"
            checked += 1
    assert checked, "SGLang pins torch at least"
