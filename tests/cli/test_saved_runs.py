"""Jobs on saved runs: the lossless check as a command, and the comparison of two."""

import json

import pytest

from recguide_core.bench.recheck import check_run

SMALL = ("--requests", 4, "--max-tokens", 16, "--warmup", 1, "--concurrency", 2)


@pytest.fixture
def saved(recguide, tmp_path):
    result = recguide("bench", *SMALL, "--methods", "linear", "--no-check", "--out", "run")
    assert result.exit_code == 0, result.output
    return tmp_path / "run"


def tamper(folder, change):
    """Change the second request of a saved run."""
    path = folder / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(next(row for row in rows if row["index"] == 1 and not row["warmup"]))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_saved_run_is_checked_without_its_data(recguide, saved):
    result = recguide("bench", "--check", "run", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["schema"] == "recguide.check/1"
    assert record["verdict"] == "exact"
    assert record["counts"] == {"exact": 4, "near-tie": 0, "different": 0}
    assert json.loads((saved / "check.json").read_text()) == record


def test_a_different_text_exits_with_one_and_says_where(recguide, saved):
    def change(row):
        row["tokens"][5] = (row["tokens"][5] + 7) % 2000

    tamper(saved, change)
    result = recguide("bench", "--check", "run", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["differences"]
    assert [(d["key"], d["position"], d["verdict"]) for d in found] == [
        ("linear/16@2#1", 5, "different")
    ]
    assert "linear/16@2#1 at token 5" in result.stderr
    assert "Fix:" in result.stderr


def test_a_near_tie_passes_unless_strict(recguide, saved, monkeypatch):
    from recguide_core.bench import target

    def change(row):
        row["tokens"][5] = 1999

    tamper(saved, change)
    rows = (saved / "requests.jsonl").read_text().splitlines()
    expected = check_run(saved)["differences"][0]["expected"]
    assert len(rows) >= 4
    tie = {expected: -0.5, 1999: -0.5 - 2e-5}
    monkeypatch.setattr(target.Reference, "best_after", lambda self, text: tie)
    result = recguide("bench", "--check", "run", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["verdict"] == "near-tie"
    assert recguide("bench", "--check", "run", "--strict-lossless").exit_code == 1


def test_a_run_of_another_model_is_not_checked(recguide, assert_refused, saved):
    about = json.loads((saved / "run.json").read_text())
    (saved / "run.json").write_text(json.dumps({**about, "model_hash": "other"}))
    assert_refused(recguide("bench", "--check", "run"), 1, "was made with model other", "--model")


def test_bench_itself_fails_on_a_different_text(recguide, monkeypatch):
    from recguide_core.bench import target

    honest = target.Reference.outputs

    def tampered(self, jobs):
        outputs = [list(tokens) for tokens in honest(self, jobs)]
        outputs[0][2] = 1999
        return outputs

    monkeypatch.setattr(target.Reference, "outputs", tampered)
    result = recguide("bench", *SMALL, "--methods", "ar", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["rows"][0]["lossless"] == "different"
    assert "differ from AR" in result.stderr


def test_two_runs_are_compared(recguide):
    clock = ("--clock", "b200/nld-8b", "--no-check")
    for name, block in (("a", 4), ("b", 4)):
        args = ("--methods", "linear", "--block-size", block, "--out", name)
        assert recguide("bench", *SMALL, *args, *clock).exit_code == 0
    result = recguide("bench", "compare", "a", "b", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["schema"] == "recguide.compare/1"
    metrics = record["rows"][0]["metrics"]
    assert metrics["tau"]["ratio"] == pytest.approx(1.0)
    assert metrics["tps"]["ratio"] == pytest.approx(1.0)
    assert "no difference shown" in result.stderr


@pytest.mark.parametrize(
    ("args", "code", "cause"),
    [
        (("--check", "absent"), 1, "absent holds no run"),
        (("compare", "absent", "other"), 1, "absent holds no run"),
        (("compare", "only-one"), 2, "compare only-one"),
        (("contrast", "a", "b"), 2, "contrast a b"),
    ],
)
def test_honest_errors(recguide, assert_refused, args, code, cause):
    assert_refused(recguide("bench", *args), code, cause)


BITWISE = ("bench", "--requests", 3, "--max-tokens", 8, "--warmup", 0, "--concurrency", 2)


def test_a_bitwise_run_is_equal_to_ar_bit_for_bit(recguide, tmp_path):
    result = recguide(*BITWISE, "--methods", "ar,overlap", "--bitwise", "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    for row in record["rows"]:
        assert row["bitwise"] == {
            "outputs": 3,
            "tokens": row["output_tokens"],
            "differing": 0,
        }
        assert row["host_share"] is None
    assert "bit for bit: 3 of 3 outputs" in result.stderr
    again = recguide("bench", "--check", "run", "--bitwise", "--json")
    assert json.loads(again.stdout)["bitwise"]["differing"] == 0
    assert (tmp_path / "run" / "requests.parquet").is_file()


def test_one_bit_fails_the_check(recguide, tmp_path):
    made = (*BITWISE, "--methods", "linear", "--bitwise", "--no-check", "--out", "run")
    assert recguide(*made).exit_code == 0
    tamper(tmp_path / "run", lambda row: row["bits"].__setitem__(2, row["bits"][2] ^ 1))
    result = recguide("bench", "--check", "run", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["verdict"] == "exact"
    assert record["bitwise"]["differing"] == 1
    assert "1 of 3 outputs are not AR's bit for bit" in result.stderr


def test_bits_are_asked_of_a_run_that_kept_none(recguide, assert_refused, saved):
    refused = recguide("bench", "--check", "run", "--bitwise")
    assert_refused(refused, 1, "was not measured with --bitwise", "--bitwise")


@pytest.mark.parametrize(
    "args",
    [
        ("--device", "cuda"),
        ("--base-url", "http://127.0.0.1:9"),
        ("--attention-backend", "torch"),
    ],
)
def test_bitwise_is_a_mode_of_the_embedded_engine_on_a_cpu(recguide, assert_refused, args):
    assert_refused(recguide("bench", "--bitwise", *args), 2, "does not go with --bitwise", "CPU")
