"""A sweep that is killed and resumed equals one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from recguide_core.bench.store import read_run

ROOT = Path(__file__).parents[2]
RUN = "from recguide_cli.app import main; main()"
# On a virtual clock a run is a function of its settings, so that rows can be compared exactly.
SWEEP = (
    "bench", "--clock", "b200/nld-8b", "--methods", "ar,linear", "--block-size", "4,8",
    "--concurrency", "2", "--requests", "10", "--max-tokens", "32", "--warmup", "1",
)  # fmt: skip


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_killed_sweep_resumes_to_the_same_rows(recguide, tmp_path):
    folder = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *SWEEP, "--out", str(folder)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    # After the first cell, in the middle of the second.
    while not (lines(folder / "cells.jsonl") == 1 and lines(folder / "requests.jsonl") >= 13):
        assert process.poll() is None or lines(folder / "cells.jsonl") > 1, "the sweep failed"
        if process.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    finished = lines(folder / "cells.jsonl")
    assert 1 <= finished < 3, "the kill came too late to leave anything to do"

    resumed = recguide(*SWEEP, "--out", "killed", "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output
    unbroken = recguide(*SWEEP, "--out", "whole", "--json")
    left, right = (json.loads(result.stdout)["rows"] for result in (resumed, unbroken))
    assert [row["lossless"] for row in left] == ["exact"] * 3
    assert left == right
    rows = [read_run(tmp_path / name)[1] for name in ("killed", "whole")]
    by_key = [{row.key: row for row in found} for found in rows]
    assert by_key[0] == by_key[1]
    assert len(rows[0]) == len(by_key[0]) == 3 * (10 + 1)
