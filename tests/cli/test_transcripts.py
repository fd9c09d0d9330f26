"""What the documentation shows was run by `scripts/transcripts.py`, and could be run again."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer

from recguide_cli.app import COMMANDS, app

ROOT = Path(__file__).parents[2]
TEXTS = sorted((ROOT / "docs" / "transcripts").glob("*.txt"))
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))


def script():
    spec = importlib.util.spec_from_file_location("transcripts", ROOT / "scripts/transcripts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands_of(text: Path) -> list[list[str]]:
    lines = text.read_text(encoding="utf-8").splitlines()
    shown = [shlex.split(line[2:].removesuffix(" &")) for line in lines if line.startswith("$ ")]
    return [words for words in shown if words[0] == "recguide"]


def test_every_scene_has_its_text_and_its_place_in_a_page():
    names = [scene.name for scene in script().SCENES]
    assert sorted(names) == sorted(text.stem for text in TEXTS)
    assert sorted(re.findall(r'--8<-- "transcripts/(.+)\.txt"', PAGES)) == sorted(names)


def test_every_command_has_one():
    shown = {words[1] for text in TEXTS for words in commands_of(text)}
    assert shown == set(COMMANDS)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_transcript_is_plain_text_and_its_options_exist(text):
    content = text.read_text(encoding="utf-8")
    assert content.startswith("$ ")
    assert "Error:" not in content
    for secret in ("\x1b", "/root", "/work", "/tmp", str(ROOT)):
        assert secret not in content
    group = typer.main.get_command(app)
    for words in commands_of(text):
        command = group.commands[words[1]]
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        asked = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
        assert asked <= known, f"{sorted(asked - known)} in {' '.join(words)}"


def test_scenes_are_chosen_with_those_that_they_need():
    module = script()
    assert [scene.name for scene in module.wanted(["tune"])] == ["profile", "calibrate", "tune"]
    assert len(module.wanted([])) == len(module.SCENES)
    with pytest.raises(SystemExit, match="No scene named nothing"):
        module.wanted(["nothing"])


def test_the_place_of_the_checkout_is_left_out():
    module = script()
    assert module.cleaned(f"\nPolicy: {module.ROOT}/tables/a.json.  \n in {module.ROOT}\n\n") == (
        "Policy: tables/a.json.\n in ."
    )
