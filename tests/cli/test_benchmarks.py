"""The benchmark scripts run and compare what they say; nothing here looks at a speed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_plain_ar_gives_the_text_of_transformers():
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers (extra dev)")
    args = ("--prompts", "3", "--tokens", "24", "--repeats", "1", "--threads", "1", "--json")
    script = str(ROOT / "benchmarks" / "vs_transformers.py")
    done = subprocess.run(
        [sys.executable, script, *args],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["equal_texts"] == record["prompts"] == 3
    assert record["recguide_tps"]["low"] > 0
    assert record["goal"] == 1.3
