"""The import arrows of the house, read from the source of every module.

An arrow forbids a room to import something anywhere in its files, inside functions too; `LAZY`
packages may be imported in their rooms only, and there only inside functions.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("recguide_core/**/*.py"), *ROOT.glob("recguide_cli/**/*.py")])
PURE = ("recguide_core/policy/", "recguide_core/records/", "recguide_core/metrics.py",
        "recguide_core/errors.py")  # fmt: skip
TORCH_FREE = (
    "recguide_core/engine/planners",
    "recguide_core/engine/scheduler.py",
    "recguide_core/simulator",
    "recguide_core/tables/",
    "recguide_core/datasets/",
)


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at the top level of the file) of every import; from-imports name the object too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nested = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef) or _typing_only(outer)
        for inner in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in nested) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                found.append((f"{node.module}.{alias.name}", id(node) not in nested))
    return found


def _typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def under(path: Path, rooms: tuple[str, ...]) -> bool:
    return str(path.relative_to(ROOT)).startswith(rooms)


def offenders(rooms: tuple[str, ...], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        if under(path, rooms)
        for name, _ in imports(path)
        if name.startswith(forbidden)
    ]


def test_the_reader_sees_imports_inside_functions(tmp_path):
    source = tmp_path / "sample.py"
    source.write_text("import numpy\ndef f():\n    from torch import nn\n", encoding="utf-8")
    assert imports(source) == [("numpy", True), ("torch.nn", False)]


def test_the_core_never_imports_the_command_line():
    assert FILES
    assert offenders(("recguide_core/",), ("recguide_cli", "typer", "rich")) == []


def test_pure_rooms_import_numpy_and_each_other_only():
    allowed = (
        "recguide_core.policy",
        "recguide_core.records",
        "recguide_core.metrics",
        "recguide_core.errors",
        "numpy",
    )
    stdlib = _standard_library()
    strange = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        if under(path, PURE)
        for name, _ in imports(path)
        if not name.startswith(allowed) and name.split(".")[0] not in stdlib
    ]
    assert strange == []


def _standard_library() -> frozenset[str]:
    import sys

    # No clock, no files, no processes: they would make a decision depend on more than its inputs.
    return frozenset(sys.stdlib_module_names) - {"time", "os", "io", "subprocess", "random"}


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_rooms_without_torch(package):
    assert offenders(TORCH_FREE, (package,)) == []


def test_the_model_knows_no_policy():
    rooms = ("recguide_core/model/", "recguide_core/kernels/", "recguide_core/kvcache.py")
    assert offenders(rooms, ("recguide_core.policy", "recguide_core.engine")) == []


def test_bench_does_not_import_serving():
    assert offenders(("recguide_core/bench/",), ("recguide_core.serving", "fastapi")) == []


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("sglang", ("recguide_core/sglang_plugin/",)),
        ("flashinfer", ("recguide_core/kernels/", "recguide_core/sglang_plugin/")),
    ],
)
def test_optional_engines_are_imported_in_their_rooms_only(package, rooms):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name, _ in imports(path)
        if name.split(".")[0] == package and not under(path, rooms)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["torch", "numpy", "pyarrow", "recguide_core.engine"])
def test_command_modules_load_nothing_heavy_at_the_top(package):
    rooms = ("recguide_cli/app.py", "recguide_cli/console.py", "recguide_cli/commands/")
    heavy = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        if under(path, rooms)
        for name, top in imports(path)
        if top and name.startswith(package)
    ]
    assert heavy == []


def test_the_core_does_not_print_exit_or_read_the_environment():
    allowed = ("recguide_core/serving/", "recguide_core/sglang_plugin/", "recguide_core/tiny/")
    calls = []
    for path in FILES:
        if not under(path, ("recguide_core/",)) or under(path, allowed):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = _dotted(node)
            if name in ("print", "exit", "sys.exit", "os.environ", "os.getenv"):
                calls.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert calls == []


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
