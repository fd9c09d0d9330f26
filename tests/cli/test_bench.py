"""`recguide bench` as a user runs it: the record, the saved run, and every honest error."""

import importlib.util
import json
import shutil

import pytest

from recguide_core.bench.rows import cell_row
from recguide_core.bench.store import read_run
from recguide_core.model.registry import bundled_folder

SMALL = ("--requests", 4, "--max-tokens", 16, "--warmup", 1)
ROW_KEYS = {
    "method",
    "block_size",
    "concurrency",
    "tps",
    "tps_steady",
    "tps_per_request",
    "tau",
    "tpf",
    "accepted_length",
    "ttft_ms",
    "tpot_ms",
    "host_share",
    "lossless",
    "clock",
}


def record_of(result):
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.output
    return json.loads(lines[0])


def test_record_has_one_row_per_method_block_and_load(recguide):
    result = recguide(
        "bench", *SMALL, "--methods", "ar,linear", "--block-size", "2,8", "--concurrency", "1,3",
        "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = record_of(result)
    assert record["schema"] == "recguide.bench/1"
    assert [(r["method"], r["block_size"], r["concurrency"]) for r in record["rows"]] == [
        ("ar", None, 1),
        ("linear", 2, 1),
        ("linear", 8, 1),
        ("ar", None, 3),
        ("linear", 2, 3),
        ("linear", 8, 3),
    ]
    for row in record["rows"]:
        assert set(row) >= ROW_KEYS
        assert row["lossless"] == "exact"
        assert row["clock"] == "wall"
        assert row["requests"] == 4
        assert row["failed"] == 0
        assert row["tps"] > 0
        assert row["tau"] == pytest.approx(2 * row["tpf"])
    plain = record["rows"][0]
    assert plain["tpf"] == 1.0
    drafted = record["rows"][2]
    assert drafted["tau"] == pytest.approx(drafted["accepted_length"])
    assert drafted["tau"] > plain["accepted_length"]


def test_the_run_is_saved_and_can_be_computed_again(recguide, tmp_path):
    result = recguide("bench", *SMALL, "--concurrency", 2, "--out", "run", "--json")
    record = record_of(result)
    settings, rows, cells = read_run(tmp_path / "run")
    assert settings["settings"]["seed"] == 0
    assert settings["origins"]["concurrency"] == "flag"
    assert settings["origins"]["model"] == "default"
    assert settings["versions"]["torch"]
    assert len(settings["model_hash"]) >= 8
    assert [cells[key] for key in ("ar@2", "linear/16@2")] == record["rows"]
    warm = [row for row in rows if row.warmup]
    assert {row.dataset for row in warm} == {"warmup"}
    from recguide_core.bench.config import Cell

    mine = [row for row in rows if row.cell == "ar@2"]
    again = cell_row(Cell("ar", None, 2), mine, clock="wall")
    assert again["tps"] == pytest.approx(record["rows"][0]["tps"])
    assert (tmp_path / "run" / "requests.parquet").is_file()
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "figures" / "pareto.csv").is_file()
    drafts = record["rows"][1]["drafts"]["margin"]
    passed = sum(row.round_tokens - row.rounds for row in rows if row.cell == "linear/16@2")
    warm_passed = sum(
        row.round_tokens - row.rounds for row in rows if row.cell == "linear/16@2" and row.warmup
    )
    # Every accepted draft token is in the histogram, and those that a stop cut off as well.
    assert sum(drafts["passed"]) >= passed - warm_passed
    assert record["rows"][0]["steps"] > 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == record


def test_without_out_the_run_lands_in_runs(recguide, tmp_path):
    result = recguide("bench", *SMALL, "--methods", "ar", "--concurrency", 1)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    saved = list((tmp_path / "runs").iterdir())
    assert len(saved) == 1
    assert "Saved in" in result.stderr


def test_same_seed_same_prompts_and_tokens(recguide, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        args = ("--methods", "linear", "--concurrency", 1, "--seed", seed, "--out", name)
        recguide("bench", *SMALL, *args, "--no-check")
    tokens = {n: [r.tokens for r in read_run(tmp_path / n)[1] if not r.warmup] for n in "abc"}
    assert tokens["a"] == tokens["b"] != tokens["c"]


def test_virtual_clock_gives_the_same_tokens_and_time_from_the_table(recguide, tmp_path):
    args = ("--methods", "ar,linear", "--concurrency", 2)
    wall = record_of(recguide("bench", *SMALL, *args, "--out", "wall", "--json"))["rows"]
    clock = ("--clock", "b200/nld-8b")
    first = record_of(recguide("bench", *SMALL, *args, *clock, "--out", "a", "--json"))["rows"]
    again = record_of(recguide("bench", *SMALL, *args, *clock, "--out", "b", "--json"))["rows"]
    assert first == again
    assert {row["clock"] for row in first} == {"b200/nld-8b"}
    assert [row["tau"] for row in first] == [row["tau"] for row in wall]
    assert first[0]["host_share"] is None
    tokens = [[r.tokens for r in read_run(tmp_path / n)[1]] for n in ("wall", "a")]
    assert tokens[0] == tokens[1]


def test_rate_ramp_and_goodput_on_a_virtual_clock(recguide):
    clock = ("--clock", "b200/nld-8b", "--no-check", "--methods", "linear", "--json")
    limits = ("--slo-ttft", 500, "--slo-tpot", 50)
    slow = record_of(recguide("bench", *SMALL, *clock, *limits, "--rate", 2, "--out", "a"))
    row = slow["rows"][0]
    assert (row["rate"], row["ramp"], row["tps_steady"]) == (2.0, None, None)
    assert row["goodput"] == row["requests_per_s"] > 0
    never = ("--slo-ttft", 0.001)
    row = record_of(recguide("bench", *SMALL, *clock, *never, "--rate", 2, "--out", "b"))["rows"][0]
    assert row["goodput"] == 0.0
    row = record_of(recguide("bench", *SMALL, *clock, "--ramp", "1:3:1", "--out", "c"))["rows"][0]
    assert (row["ramp"], row["concurrency"], row["goodput"]) == ("1:3:1", 3, None)


def test_no_check_leaves_the_verdict_open(recguide):
    result = recguide(
        "bench", *SMALL, "--methods", "ar", "--concurrency", 1, "--no-check", "--json"
    )
    assert record_of(result)["rows"][0]["lossless"] is None
    assert "unchecked" in result.stderr


def test_a_method_that_changes_the_text_is_called_different(recguide, monkeypatch):
    from recguide_core.bench import target

    honest = target.Reference.outputs

    def tampered(self, jobs):
        outputs = [list(tokens) for tokens in honest(self, jobs)]
        outputs[1][3] = (outputs[1][3] + 1) % 2000
        return outputs

    monkeypatch.setattr(target.Reference, "outputs", tampered)
    result = recguide("bench", *SMALL, "--methods", "ar", "--concurrency", 1, "--json")
    row = record_of(result)["rows"][0]
    assert row["lossless"] == "different"
    assert row["lossless_counts"] == {"exact": 3, "near-tie": 0, "different": 1}


def test_resume_goes_on_and_keeps_finished_cells(recguide, assert_refused, tmp_path):
    args = ("bench", *SMALL, "--methods", "ar,linear", "--concurrency", 1, "--out", "run")
    before = record_of(recguide(*args, "--json"))["rows"]
    folder = tmp_path / "run"
    cells = (folder / "cells.jsonl").read_text().splitlines(keepends=True)
    (folder / "cells.jsonl").write_text(cells[0])
    after = record_of(recguide(*args, "--resume", "--json"))["rows"]
    assert after[0] == before[0]
    assert [row["method"] for row in after] == ["ar", "linear"]
    rows = read_run(folder)[1]
    assert len({row.key for row in rows}) == len(rows) == 10
    refused = recguide(*args, "--resume", "--seed", 9)
    assert_refused(refused, 1, "other settings: seed", "--out")


def test_a_second_run_does_not_destroy_the_first(recguide, assert_refused):
    args = ("bench", *SMALL, "--methods", "ar", "--concurrency", 1, "--out", "run")
    assert recguide(*args).exit_code == 0
    assert_refused(recguide(*args), 2, "already holds a run", "--overwrite")
    assert recguide(*args, "--overwrite").exit_code == 0


def test_own_file_with_own_columns(recguide, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"body": "Count to three."}\n{"body": "Say hello."}\n')
    args = ("--data", "mine.jsonl", "--column", "body", "--methods", "ar", "--concurrency", 1)
    result = recguide("bench", *SMALL, *args, "--json")
    data = record_of(result)["run"]["data"]
    assert data["columns"] == {"mine": "body"}
    assert (data["used"], data["repeats"]) == (2, 2)
    assert "repeat" in result.stderr


def test_output_lengths_of_the_data_are_kept(recguide, tmp_path):
    (tmp_path / "t.csv").write_text("prompt,output_len\nCount to ten.,5\nSay hello.,3\n")
    args = ("--data", "t.csv", "--methods", "ar", "--concurrency", 1, "--ignore-eos")
    recguide("bench", "--requests", 2, *args, "--out", "run")
    rows = [r for r in read_run(tmp_path / "run")[1] if not r.warmup]
    assert sorted(row.output_tokens for row in rows) == [3, 5]


@pytest.mark.parametrize(
    ("args", "code", "cause", "remedy"),
    [
        (("--model", "nld-tyni"), 2, "nld-tyni", "Did you mean 'nld-tiny'"),
        (("--methods", "linaer"), 2, "linaer", "Did you mean 'linear'"),
        (("--data", "gsm8"), 2, "gsm8", "Did you mean 'gsm8k'"),
        (("--data", "gsm8k"), 1, "gsm8k", "RECGUIDE_DATA_DIR"),
        (("--data", "absent.jsonl"), 1, "absent.jsonl", "path"),
        (("--data-dir", "absent", "--data", "gsm8k"), 1, "absent", "--data-dir"),
        (("--block-size", "0"), 2, "--block-size 0", "32"),
        (("--block-size", "64"), 2, "--block-size 64", "32"),
        (("--requests", "-3"), 2, "--requests is -3", "at least 1"),
        (("--concurrency", "-1"), 2, "--concurrency is -1", "at least 1"),
        (("--max-tokens", "0"), 2, "--max-tokens is 0", "at least 1"),
        (("--seed", "-1"), 2, "--seed is -1", "at least 0"),
        (("--kv-tokens", "16"), 2, "does not fit into the KV pool", "--kv-tokens"),
        (("--dtype", "float8"), 2, "float8", "float16"),
        (("--template", "plan"), 2, "plan", "Did you mean 'plain'"),
        (("--turns", "frist"), 2, "frist", "Did you mean 'first'"),
        (("--clock", "b200/nld-9b"), 2, "nld-9b", "Did you mean 'nld-8b'"),
        (("--clock", "sundial"), 2, "'sundial' is no clock", "Known"),
        (("--suite", "papper"), 2, "papper", "Did you mean 'paper'"),
        (("--batching", "raged"), 2, "raged", "Did you mean 'ragged'"),
        (("--methods", "adaptive", "--policy", "absent.json"), 1, "absent.json", ""),
        (("--resume", "--out", "absent"), 2, "no run to resume", "--out"),
    ],
)
def test_honest_errors(recguide, assert_refused, args, code, cause, remedy):
    if "gsm8k" in args and importlib.util.find_spec("datasets") is not None:
        pytest.skip("needs an environment without the `datasets` library")
    assert_refused(recguide("bench", *args), code, cause, remedy)


def test_bad_row_is_named_with_its_line(recguide, assert_refused, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "Hello."}\n{"prompt": 3}\n')
    assert_refused(recguide("bench", "--data", "bad.jsonl"), 1, "bad.jsonl:2: ", "--skip-bad-rows")
    (tmp_path / "none.jsonl").write_text("")
    assert_refused(recguide("bench", "--data", "none.jsonl"), 1, "none.jsonl is empty")
    result = recguide(
        "bench", "--data", "bad.jsonl", "--skip-bad-rows", "--requests", 1, "--methods", "ar",
        "--concurrency", 1, "--max-tokens", 4,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "bad.jsonl:2: 'prompt' must be text, not a number" in result.stderr


def test_prompt_longer_than_the_context(recguide, assert_refused, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "long", "prompt": "word " * 4000}))
    assert_refused(recguide("bench", "--data", "long.jsonl"), 2, "Prompt long of long", "context")


def test_a_folder_that_is_no_model(recguide, tmp_path):
    shutil.copytree(bundled_folder(), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"not tensors")
    refused = recguide("bench", "--model", "./model", "--requests", 1)
    assert refused.exit_code == 1, refused.output
    assert "Error:" in refused.stderr
    (tmp_path / "model" / "config.json").unlink()
    refused = recguide("bench", "--model", "./model", "--requests", 1)
    assert refused.exit_code == 1, refused.output
    assert "config.json" in refused.stderr


def test_figures_are_pngs_where_matplotlib_is(recguide, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    monkeypatch.setattr("recguide_core.bench.report.png.available", lambda: True)
    recguide("bench", *SMALL, "--methods", "ar", "--concurrency", 1, "--out", "run")
    figures = tmp_path / "run" / "figures"
    for svg in figures.glob("*.svg"):
        assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert (figures / "breakdown.png").is_file()


def test_a_step_is_held_against_its_physical_floor(recguide):
    result = recguide("bench", *SMALL, "--methods", "ar", "--concurrency", "1,2", "--json")
    record = record_of(result)
    peaks = record["run"]["peaks"]
    assert peaks["bandwidth"] > 1e8
    assert peaks["flops"] > 1e8
    assert "measured on" in peaks["source"]
    one, two = (row["floor"] for row in record["rows"])
    assert 0 < one["ms"] == max(one["bytes_ms"], one["flops_ms"])
    assert one["achieved"] == pytest.approx(one["ms"] / record["rows"][0]["step_ms"])
    # Weights are read once, whatever the load; what is computed grows with it.
    assert one["bytes"] < two["bytes"] < 1.5 * one["bytes"]
    assert one["flops"] < two["flops"]
    assert "Physical floor / time of a step" in result.stderr


def test_a_virtual_clock_has_the_makers_floor(recguide):
    args = ("--methods", "linear", "--concurrency", 1, "--clock", "b200/nld-8b", "--no-check")
    row = record_of(recguide("bench", *SMALL, *args, "--json"))["rows"][0]
    # 15.9 GB of weights at 7.67 TB/s.
    assert row["floor"]["bytes_ms"] == pytest.approx(2.07, abs=0.05)
    assert row["floor"]["bound"] == "bytes"
    assert 0.1 < row["floor"]["achieved"] < 1.0
