"""Every claim that needs a GPU names a function that exists and a CPU test that exists."""

import ast
from pathlib import Path

import pytest

import recguide_core
from recguide_core.sglang_plugin.unproven import UNPROVEN

CORE = Path(recguide_core.__path__[0])
KERNEL_TESTS = Path(__file__).parents[1] / "kernels"


def definitions(path):
    """Dotted names of functions, classes and methods in a file."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            found |= {f"{node.name}.{n.name}" for n in inner}
    return found


@pytest.mark.parametrize("entry", UNPROVEN, ids=lambda e: e.name)
def test_the_entry_points_at_real_things(entry):
    module, attribute = entry.function.split(":")
    assert attribute in definitions(CORE / f"{module.replace('.', '/')}.py")
    file, test = entry.input_test.split("::")
    assert test in definitions(KERNEL_TESTS / file)
    assert entry.proves
