"""Ahead-of-time compilation of every shipped configuration for sm_90 and sm_100.

What no numerical test sees: spills to local memory, two-byte loads, missing tensor-core
instructions, shared memory that does not fit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="needs Triton, which is installed on Linux only")

from recguide_core.kernels import launch  # noqa: E402
from recguide_core.kernels.aot import CAPABILITIES, Resources, faults  # noqa: E402
from recguide_core.kernels.specimen import Specimen  # noqa: E402
from recguide_core.kernels.specimens import specimens  # noqa: E402

ROOT = Path(__file__).parents[2]
WORKERS = 2


def compile_all(environment: dict[str, str]) -> dict[tuple[str, int], dict]:
    """Build everything in `WORKERS` processes; Triton's cache is private to the run."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "recguide_core.kernels.aot", str(i), str(WORKERS)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(WORKERS)
    ]  # fmt: skip
    built = {}
    for worker in workers:
        out, err = worker.communicate()
        assert worker.returncode == 0, err[-4000:]
        for line in out.splitlines():
            row = json.loads(line)
            built[row["name"], row["capability"]] = row
    return built


def clean_environment(cache: Path, target: str | None = None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = [p for p in (target, str(ROOT)) if p]
    return {
        **kept,
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict]:
    return compile_all(clean_environment(tmp_path_factory.mktemp("triton")))


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("specimen", specimens(), ids=lambda s: s.name)
def test_clean_build(built: dict, specimen: Specimen, capability: int) -> None:
    row = built[specimen.name, capability]
    assert faults(specimen, Resources(**row)) == []


def test_names_are_unique() -> None:
    names = [s.name for s in specimens()]
    assert len(names) == len(set(names))


def test_every_shape_that_the_engine_asks_for_is_compiled() -> None:
    """All buckets of tokens and requests, for every published model and nld-tiny."""
    names = {s.name for s in specimens()}
    seen = set()
    for D, group in launch.SHAPES:
        for page in launch.PAGE_SIZES:
            for tokens in launch.TOKEN_BUCKETS:
                for requests in launch.REQUEST_BUCKETS:
                    config = launch.attention_config(tokens, requests, group, D, page)
                    assert config is not None
                    seen.add(config)
                    assert f"attention_tiles D{D} G{group} page{page} {config.name}" in names
                    assert f"attention_merge D{D} G{group} M{config.block_m}" in names
                    assert f"plan_tiles G{group} M{config.block_m}" in names
    assert seen == set(launch.ATTENTION_CONFIGS), "a configuration that nothing asks for"


def test_published_models_are_served() -> None:
    from recguide_core.model.config import read_config
    from recguide_core.model.registry import bundled_folder, published_config

    sizes = [published_config(name) for name in ("nld-3b", "nld-8b", "nld-14b")]
    for config in [*sizes, read_config(bundled_folder())]:
        assert (config.head_dim, config.group) in launch.SHAPES
        assert launch.lora_splits(config.heads * config.head_dim) >= 1
        assert config.hidden % launch.LORA.block_n == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"stack": 8}, "spills"),
        ({"local_accesses": 2}, "spills"),
        ({"shared": 232449}, "shared memory"),
        ({"tensor_core": {}}, "tensor-core"),
        ({"wide_loads": 0}, "16-byte"),
    ],
)
def test_faults_are_named(change: dict, complaint: str) -> None:
    good = {
        "name": "x", "capability": 90, "registers": 100, "stack": 0, "shared": 1024,
        "local_accesses": 0, "tensor_core": {"HGMMA": 4}, "wide_loads": 3,
    }  # fmt: skip
    specimen = next(iter(specimens()))
    assert faults(specimen, Resources(**good)) == []
    assert any(complaint in fault for fault in faults(specimen, Resources(**{**good, **change})))


@pytest.mark.slow
def test_clean_build_with_triton_3_6(tmp_path: Path) -> None:
    """The oldest Triton of the supported range, in a folder of its own."""
    target = tmp_path / "triton36"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    done = subprocess.run([*install, str(target), "triton==3.6.0"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs a package index that has triton 3.6.0")
    built = compile_all(clean_environment(tmp_path / "cache", str(target)))
    by_name = {s.name: s for s in specimens()}
    wrong = {key: faults(by_name[key[0]], Resources(**row)) for key, row in built.items()}
    assert {key: value for key, value in wrong.items() if value} == {}
