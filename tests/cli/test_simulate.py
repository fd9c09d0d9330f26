"""`recguide bench --simulate` and the suites `paper` and `plan` as a user runs them."""

import json

import pytest

SMALL = ("--requests", 4, "--max-tokens", 32)
ROW_KEYS = {
    "method", "block_size", "concurrency", "tps", "tps_steady", "tps_per_request", "tau", "tpf",
    "accepted_length", "ttft_ms", "tpot_ms", "host_share", "lossless", "clock",
}  # fmt: skip


def record_of(result):
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.output
    return json.loads(lines[0])


def test_simulation_prints_the_bench_record(recguide):
    result = recguide(
        "bench", "--simulate", *SMALL, "--concurrency", "1,2", "--methods", "ar,linear,recguide",
        "--block-size", "8", "--json",
    )  # fmt: skip
    record = record_of(result)
    assert record["schema"] == "recguide.bench/1" and record["run"]["simulated"]
    assert len(record["rows"]) == 6
    for row in record["rows"]:
        assert set(row) >= ROW_KEYS
        assert row["clock"] == "b200/nld-8b" and row["output_tokens"] == 4 * 32
    assert "No model ran" in result.stderr and "modelled" in result.stderr


def test_other_gpu_host_time_and_arrivals(recguide):
    common = ("bench", "--simulate", *SMALL, "--concurrency", 2, "--methods", "linear", "--json")
    base = record_of(recguide(*common, "--block-size", 8))["rows"][0]
    hosted = record_of(recguide(*common, "--block-size", 8, "--host", "5,0.5"))["rows"][0]
    other = record_of(recguide(*common, "--block-size", 8, "--gpu", "h100"))["rows"][0]
    slow = record_of(recguide(*common, "--block-size", 8, "--rate", "0.5"))["rows"][0]
    assert hosted["tps"] < base["tps"] and other["tps"] < base["tps"]
    assert slow["tps"] < base["tps"] / 2 and other["clock"] == "h100/nld-8b"


def test_plan_names_the_largest_load(recguide, tmp_path):
    result = recguide(
        "bench", "--suite", "plan", "--target-tps", 1000, "--max-tokens", 24, "--out", "plan",
        "--json",
    )  # fmt: skip
    record = record_of(result)
    assert record["schema"] == "recguide.suite/1" and record["suite"] == "plan"
    rows = {row["label"]: row["cells"] for row in record["tables"][0]["rows"]}
    assert rows["ar"][0]["ours"] == 0
    assert "What if" in record["tables"][1]["title"] and "GPU h200: recguide" in {
        row["label"] for row in record["tables"][1]["rows"]
    }
    assert (tmp_path / "plan" / "plan.md").read_text().startswith("## Suite `plan`")
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["suite"] == "plan"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--simulate", "--gpu", "b20"), "No GPU 'b20'"),
        (("--simulate", "--model", "nld-9b"), "nld-9b"),
        (("--simulate", "--host", "fast"), "--host is 'fast'"),
        (("--simulate", "--host=-1,0"), "--host is '-1,0'"),
        (("--simulate", "--methods", "magic"), "magic"),
        (("--simulate", "--ramp", "3"), "A ramp needs the rate"),
        (("--suite", "plan"), "A plan needs a target"),
        (("--suite", "plan", "--target-tpot", "0"), "target tpot_ms is 0"),
        (("--suite", "paper", "--model", "nld-tiny"), "no results for 'nld-tiny'"),
        (("--suite", "papers"), "No suite named 'papers'"),
    ],
)
def test_wrong_options_are_refused(recguide, assert_refused, options, cause):
    assert_refused(recguide("bench", *options), 2, cause)


def test_a_missing_trace_is_refused(recguide, assert_refused):
    result = recguide("bench", "--simulate", "--traces", "none.arrow", "--concurrency", 1)
    assert_refused(result, 1, "no trace table at none.arrow")
