"""Numerical equality of every kernel with its twin, in Triton's interpreter on CPU tensors.

The interpreter is chosen when a kernel module is imported, so each file of `interpreted/` runs in
a process of its own. What the interpreter cannot show (races, alignment, tensor-core rounding,
capture) is listed in `recguide_core.kernels.unproven`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which is installed on Linux only")

FOLDER = Path(__file__).parent / "interpreted"
FILES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_in_the_interpreter(file: Path) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(FOLDER.parents[2]), str(FOLDER.parent)]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command, cwd=FOLDER.parents[2], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed.group(1)) > 0
    assert "skipped" not in done.stdout
