"""The wheel stands on its own: built, installed elsewhere, and used outside the repository."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = "from recguide_cli.app import main; main()"


def run(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RECGUIDE_DATA_DIR")}
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the files that git knows, built from a copy so that the tree stays clean."""
    pytest.importorskip("build", reason="needs the package `build` (extra dev)")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("recguide_cli", "recguide_core", "tables"):
        _copy(ROOT / name, source / name)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    built = run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), cwd=source)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


def _copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the wheel installed in it; dependencies come from this environment."""
    target = tmp_path_factory.mktemp("site")
    done = run(
        "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(target),
        str(wheel), cwd=target,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def test_every_package_and_data_file_is_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("recguide_cli", "recguide_core"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in names
    for table in (ROOT / "tables").glob("*.arrow"):
        assert f"recguide_tables/{table.name}" in names
    for needed in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert f"recguide_core/tiny/weights/{needed}" in names
    assert "recguide_core/tiny/demo_prompts.jsonl" in names
    assert not any(name.startswith(("tests/", "tables/", "scripts/")) for name in names)


def test_the_installed_wheel_benches_the_bundled_model(installed, tmp_path):
    done = run(
        "-c", INSTALLED, "bench", "--requests", "2", "--max-tokens", "8", "--warmup", "1",
        "--concurrency", "1", "--out", "run", "--json",
        cwd=tmp_path, PYTHONPATH=str(installed),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [row["lossless"] for row in record["rows"]] == ["exact", "exact"]
    assert str(installed) in record["run"]["data"]["sources"]["demo"]


def test_the_installed_wheel_finds_its_tables(installed, tmp_path):
    done = run("-c", INSTALLED, "doctor", "--json", cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    shipped = sorted(path.name for path in (ROOT / "tables").glob("*.cost.arrow"))
    found = json.loads(done.stdout)["tables"]["cost"]
    assert [f"{name}.cost.arrow" for name in found] == shipped != []
