"""Two runs side by side: pairs, intervals and verdicts."""

import numpy as np
import pytest

from recguide_core.bench.compare import compare_runs, verdict
from recguide_core.bench.rows import RequestRow
from recguide_core.bench.store import RunFolder
from recguide_core.errors import DataError


def save(path, seconds, *, cell="linear/16@1", prompts="p", model="m", seed=0):
    folder = RunFolder(path)
    about = {"settings": {"seed": seed}, "model_hash": model, "prompts_hash": "x"}
    folder.start(about, resume=False, overwrite=False)
    rows = [
        RequestRow(
            cell,
            index,
            f"{prompts}/{index}",
            f"{prompts}{index}",
            "demo",
            "math",
            4,
            40,
            0.0,
            first_s=0.1,
            end_s=float(time),
            finish="length",
            rounds=4,
            forwards=8,
            round_tokens=39,
            tokens=[1] * 40,
        )
        for index, time in enumerate(seconds)
    ]
    folder.add_cell(cell, {"tps": 40 * len(rows) / sum(seconds)}, rows)
    return path


def metrics_of(record, name):
    return record["rows"][0]["metrics"][name]


NOISY = 1.0 + np.random.default_rng(5).uniform(0, 3, 40)


def test_a_steady_gain_shows_although_prompts_differ_widely(tmp_path):
    save(tmp_path / "a", NOISY)
    save(tmp_path / "b", NOISY * 0.9)
    record = compare_runs(tmp_path / "a", tmp_path / "b")
    assert record["rows"][0]["paired"]
    found = metrics_of(record, "tps_per_request")
    assert found["verdict"] == "better"
    assert found["ratio"] == pytest.approx(1 / 0.9)
    assert found["interval"][0] > 1.05
    assert metrics_of(record, "e2e_ms")["verdict"] == "better"


def test_unpaired_prompts_widen_the_interval(tmp_path):
    save(tmp_path / "a", NOISY)
    save(tmp_path / "b", NOISY * 0.9, prompts="q")
    record = compare_runs(tmp_path / "a", tmp_path / "b")
    assert not record["rows"][0]["paired"]
    assert metrics_of(record, "tps_per_request")["verdict"] == "no difference shown"


def test_equal_runs_show_no_difference(tmp_path):
    save(tmp_path / "a", NOISY)
    save(tmp_path / "b", NOISY)
    record = compare_runs(tmp_path / "a", tmp_path / "b")
    for name, found in record["rows"][0]["metrics"].items():
        assert found["verdict"] in ("no difference shown", "not comparable", "one number each"), (
            name
        )
    assert record["changed_settings"] == {}


def test_the_same_seed_gives_the_same_intervals(tmp_path):
    save(tmp_path / "a", NOISY)
    save(tmp_path / "b", NOISY[::-1])
    assert compare_runs(tmp_path / "a", tmp_path / "b") == compare_runs(
        tmp_path / "a", tmp_path / "b"
    )


def test_changed_settings_are_named(tmp_path):
    save(tmp_path / "a", NOISY)
    save(tmp_path / "b", NOISY, model="other", seed=3)
    changed = compare_runs(tmp_path / "a", tmp_path / "b")["changed_settings"]
    assert changed == {"model_hash": ["m", "other"], "seed": [0, 3]}


def test_runs_without_a_common_cell(tmp_path):
    save(tmp_path / "a", NOISY)
    save(tmp_path / "b", NOISY, cell="ar@8")
    with pytest.raises(DataError, match="no cell in common") as caught:
        compare_runs(tmp_path / "a", tmp_path / "b")
    assert "ar@8" in caught.value.remedy


def test_one_request_is_not_comparable(tmp_path):
    save(tmp_path / "a", [1.0])
    save(tmp_path / "b", [2.0])
    record = compare_runs(tmp_path / "a", tmp_path / "b")
    assert metrics_of(record, "e2e_ms")["verdict"] == "not comparable"


@pytest.mark.parametrize(
    ("metric", "low", "high", "expected"),
    [
        ("tau", 1.1, 1.2, "better"),
        ("tau", 0.8, 0.9, "worse"),
        ("ttft_ms", 1.1, 1.2, "worse"),
        ("ttft_ms", 0.8, 0.9, "better"),
        ("tau", 0.9, 1.1, "no difference shown"),
        ("chunk_tokens", 1.1, 1.2, "different"),
    ],
)
def test_direction_of_a_verdict(metric, low, high, expected):
    assert verdict(metric, low, high) == expected
