"""The device script: what it needs, what it writes, and the law behind its replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs Triton, which is installed on Linux only")

from recguide_core.errors import UsageError
from recguide_core.kernels.check import parts
from recguide_core.kernels.check.acceptance import (
    ForcedOps,
    Script,
    mean_accepted,
)
from recguide_core.kernels.check.costs import points
from recguide_core.kernels.check.models import (
    config_for,
    random_pools,
    random_transformer,
)
from recguide_core.kernels.check.roundtrip import OVERLAP, PAGE, _started
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.device_forward import geometry_of
from recguide_core.kernels.graphs import GraphCache
from recguide_core.kernels.ops import PageTable, TorchRoundOps
from recguide_core.kernels.rounds import DeviceRounds, RoundSettings
from recguide_core.profiling.imported import import_report

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
ONLY_THREE = """
import importlib.abc, runpy, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError("the device machine has no " + name)
sys.meta_path.insert(0, Refuse())
sys.argv = ["device_check.py", "--tiny", "--only", {only!r}, "--out", {out!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


def dry_run(only: str, out: Path) -> None:
    """One part with numpy, torch and triton; everything else of ours is made unimportable."""
    names = {"safetensors", "tokenizers", "pyarrow", "typer", "rich", "jinja2", "transformers"}
    code = ONLY_THREE.format(
        names=names, only=only, out=str(out), script=str(ROOT / "scripts/device_check.py")
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["failures"] == 0 and summary["dry_run"]


def test_runs_with_three_packages_and_its_report_is_a_cost_table(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    dry_run("cost", out)
    table = import_report(out)
    assert set(table.columns["kind"]) == {"ar", "draft", "verify"}
    assert table.provenance["device"].startswith("cpu")


def test_recguide_is_replayed_beside_the_fixed_methods(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    dry_run("replay", out)
    records = json.loads(out.read_text())["records"]
    found = {r["method"]: r for r in records if r["part"] == "replay" and "method" in r}
    assert set(found) == {"recguide", "overlap"}
    ours = found["recguide"]
    # Its block is its own: no fixed B, and what it verified is on its menu of the dry run.
    assert ours["B"] is None and 1 <= ours["mean_block"] <= 4
    assert ours["tokens"] > 0 and ours["rounds"] > 0


def test_the_engine_runs_resident_rounds(tmp_path: Path) -> None:
    dry_run("engine", tmp_path / "check.json")
    records = json.loads((tmp_path / "check.json").read_text())["records"]
    ours = next(r for r in records if r["part"] == "engine")
    assert ours["resident"] > 0 and ours["not_resident"] == ""
    assert ours["host_loop_agrees"] == 1.0 and ours["tokens"] > 0


def test_mistakes_are_told() -> None:
    with pytest.raises(UsageError, match="Did you mean 'attention'"):
        parts.run("atention", 1.0, True, print)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA device"):
            parts.run(None, 1.0, False, print)


def test_a_broken_part_is_a_failure_and_the_rest_still_runs(monkeypatch) -> None:
    def broken(bench) -> None:
        raise ValueError("a kernel went wrong")

    monkeypatch.setattr(
        parts, "PARTS", {"attention": broken, "flashinfer": parts.PARTS["flashinfer"]}
    )
    report = parts.run(None, 60.0, True, lambda record: None)
    assert report["failures"] == 1
    assert [r["part"] for r in report["records"]] == ["attention", "flashinfer"]


def test_the_budget_stops_new_parts(monkeypatch) -> None:
    monkeypatch.setattr(parts, "PARTS", {"attention": print, "speed": print})
    report = parts.run(None, -1.0, True, lambda record: None)
    assert {r["skipped"] for r in report["records"]} == {"the budget is spent"}


def test_every_point_of_the_cost_table_is_asked_for_once() -> None:
    wanted = list(points(800, 128))
    keys = [
        (p.kind, len(p.requests), p.query_tokens, p.kv_tokens, p.block_size, p.branches)
        for p in wanted
    ]
    assert len(keys) == len(set(keys))
    for C in (1, 2, 4, 8, 16, 32, 64, 128):
        for B in (4, 8, 16, 32):
            assert ("verify", C, C * B, C * 800, B, 0) in keys
            assert ("draft", C, C * B, C * 800, B, 0) in keys
        assert ("ar", C, C, C * 800, 1, 0) in keys
    for branches in (1, 2, 3):
        assert ("fused", 1, 16 * (1 + branches), 800, 16, branches) in keys


def test_the_law_reproduces_the_published_lengths() -> None:
    """Mean accepted length of six data sets at B = 4, 8, 16, 32."""
    for block, mean in ((4, 3.669), (8, 6.357), (16, 10.219), (32, 15.500)):
        assert mean_accepted(block) == pytest.approx(mean, rel=0.015)


@pytest.mark.parametrize(
    ("rule", "hit_rate"), [(RoundRule(), 0.0), (OVERLAP, 0.6)], ids=["linear", "overlap"]
)
def test_replayed_rounds_follow_the_law(rule: RoundRule, hit_rate: float) -> None:
    """Accepted lengths and reuse of forced rounds are those of the script."""
    B, n, steps = 8, 4, 120
    transformer = random_transformer(config_for(True), CPU, torch.float32, 16)
    config = transformer.config
    reach = 20 + steps * B
    per = -(-reach // PAGE)
    pools = random_pools(config, per * n * PAGE, CPU, torch.float32)
    table = PageTable(
        torch.arange(per * n, dtype=torch.int32),
        torch.arange(n + 1, dtype=torch.int32) * per,
        PAGE,
    )
    state = _started(n, 20, reach, CPU)
    # Positions beyond the miniature's rotary table would be out of range.
    transformer.rotary.cos = torch.ones(reach + 64, config.head_dim)
    transformer.rotary.sin = torch.zeros(reach + 64, config.head_dim)
    script = Script.drawn(0.6, CPU)

    def make(tokens: int, requests: int) -> ForcedOps:
        return ForcedOps(TorchRoundOps(geometry_of(transformer, PAGE)), script, config.vocab)

    with torch.inference_mode():
        loop = DeviceRounds(
            transformer, make, pools, table, state, RoundSettings(rule, B),
            GraphCache(None, 0, lambda: 0),
        )  # fmt: skip
        lengths = []
        for _ in range(steps):
            emitted = loop.step()
            lengths += emitted.count[emitted.width > 0].tolist()
    assert np.mean(lengths) == pytest.approx(mean_accepted(B), rel=0.08)
    reuse = int(state.reused.sum()) / int(state.rounds.sum())
    assert reuse == pytest.approx(hit_rate, abs=0.08)
