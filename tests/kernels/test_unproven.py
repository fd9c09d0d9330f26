"""The list of what no GPU has proved: every entry points at real code and a real test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from recguide_core.kernels.unproven import UNPROVEN

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def defined(path: Path) -> set[str]:
    """Names of functions and methods (Class.method) in a source file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef))
            names.update(f"{node.name}.{n.name}" for n in inner)
    return names


@pytest.mark.parametrize("entry", UNPROVEN, ids=lambda e: e.name)
def test_entry_is_real(entry) -> None:
    module, name = entry.function.split(":")
    assert name in defined(ROOT / "recguide_core" / (module.replace(".", "/") + ".py"))
    file, test = entry.input_test.split("::")
    assert test in defined(HERE / file)


def test_every_proof_is_a_part_of_the_device_script() -> None:
    text = (ROOT / "scripts" / "device_check.py").read_text()
    for entry in UNPROVEN:
        assert f'"{entry.proves}"' in text, entry.proves


def test_gpu_only_functions_are_listed() -> None:
    """Everything in `kernels.cuda` needs a device, so all of it is here."""
    listed = {e.function for e in UNPROVEN}
    public = {n for n in defined(ROOT / "recguide_core/kernels/cuda.py") if "." not in n}
    assert {f"kernels.cuda:{n}" for n in public} <= listed
