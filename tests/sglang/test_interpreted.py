"""Runs `interpreted/` in a process of its own: Triton's interpreter is chosen at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which is installed on Linux only")

HERE = Path(__file__).parent


def test_the_kernel_on_the_row_table():
    root = HERE.parents[1]
    paths = [str(root), str(HERE), str(HERE.parent / "support")]
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    file = HERE / "interpreted" / "kernel_rows.py"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(argv, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "3 passed" in done.stdout
