"""`recguide profile`: measures, lists, imports, and refuses the wrong device."""

import json

import pytest

from recguide_core.tables import read_table

TINY = ("--requests", "1,2", "--block-size", "2", "--context", "16", "--budget", "3")


def test_measures_into_a_cost_table_with_provenance(recguide, tmp_path):
    result = recguide("profile", *TINY, "--out", "t.cost.arrow", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    table = read_table(tmp_path / "t.cost.arrow", "cost")
    assert said["sha256"] == table.digest
    assert said["rows"] == len(table)
    assert {"ar", "draft", "verify"} <= set(table.columns["kind"])
    assert set(table.columns["origin"]) == {"measured"}
    assert table.provenance["model"] == "nld-tiny"
    assert table.provenance["device"].startswith("cpu: ")
    assert table.provenance["dtype"] == "float32"


def test_default_place_is_where_the_chain_looks(recguide, tmp_path):
    result = recguide("profile", *TINY, "--any-cpu")
    assert result.exit_code == 0, result.output
    table = read_table(tmp_path / "runs" / "tables" / "cpu-nld-tiny.cost.arrow", "cost")
    assert table.provenance["device"] == "cpu-any"


def test_without_the_device_the_shipped_tables_are_listed(recguide, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = recguide("profile", "--gpu", "b200", "--json")
    assert result.exit_code == 0, result.output
    shipped = json.loads(result.stdout)["shipped"]
    assert {(t["device"], t["model"]) for t in shipped} >= {("b200", "nld-8b"), ("b200", "nld-14b")}
    assert "no CUDA device" in result.stderr


def test_measure_insists_on_the_device(recguide, assert_refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = recguide("profile", "--gpu", "b200", "--measure")
    assert_refused(result, 1, "no CUDA device", "--gpu cpu")


def test_another_device_than_named_is_refused(recguide, assert_refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "NVIDIA H200")
    result = recguide("profile", "--gpu", "b200")
    assert_refused(result, 1, "'NVIDIA H200', not 'b200'", "--gpu h200")


def report(**change):
    row = {
        "kind": "verify",
        "requests": 2,
        "query_tokens": 32,
        "kv_tokens": 1600,
        "block_size": 16,
        "branches": 0,
        "mean_ms": 5.5,
        "std_ms": 0.1,
        "count": 20,
        "origin": "measured",
    }
    about = {
        "model": "nld-8b",
        "model_hash": "random-1",
        "device": "NVIDIA H200",
        "date": "2026-11-01",
        "source": "scripts/device_check.py",
        "dtype": "bfloat16",
        "attention": "triton",
        "graph": "graph",
        "seed": 0,
    }
    return {"schema": "recguide.device_check/1", "cost": [row], "provenance": about, **change}


def test_a_device_report_becomes_a_cost_table(recguide, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(report()))
    result = recguide("profile", "--import", "report.json", "--out", "h.cost.arrow")
    assert result.exit_code == 0, result.output
    table = read_table(tmp_path / "h.cost.arrow", "cost")
    assert table.provenance["device"] == "h200"
    assert table.columns["mean_ms"].tolist() == [5.5]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"schema": "other/1"}, "no device report"),
        ({"cost": []}, "no timed forwards"),
        ({"cost": [3]}, "cost row 0 is no object"),
        ({"cost": [{"kind": "ar"}]}, "cost row 0 lacks requests"),
        ({"provenance": None}, "does not say where"),
        ({"provenance": {"model": "m"}}, "does not say its"),
    ],
)
def test_a_broken_report_is_refused(recguide, assert_refused, tmp_path, change, cause):
    (tmp_path / "report.json").write_text(json.dumps(report(**change)))
    assert_refused(recguide("profile", "--import", "report.json"), 1, cause)


@pytest.mark.parametrize(
    ("args", "code", "cause"),
    [
        (("--block-size", "1"), 2, "--block-size has 1"),
        (("--block-size", "40"), 2, "--block-size has 40"),
        (("--requests", "0"), 2, "--requests has 0"),
        (("--context", "-5"), 2, "--context has -5"),
        (("--budget", "0"), 2, "--budget is 0"),
        (("--model", "nld-tynee"), 2, "nld-tynee"),
        (("--import", "absent.json"), 1, "absent.json does not exist"),
    ],
)
def test_honest_errors(recguide, assert_refused, args, code, cause):
    assert_refused(recguide("profile", *args), code, cause)
