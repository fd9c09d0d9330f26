"""profile, calibrate, tune and bench with --engine sglang, from the command line, for real."""

import json
from contextlib import contextmanager

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import CHECKS, HERE
from typer.testing import CliRunner

from recguide_cli.app import app
from recguide_core.bench.store import read_run
from recguide_core.calibration.run import collect
from recguide_core.calibration.settings import ShadowSettings
from recguide_core.datasets import load_prompts, select
from recguide_core.tables import read_policy, read_table

MENU = "1,4,8"
PROFILE = ("--requests", "1,4", "--block-size", "4,8", "--context", "32", "--budget", "60")
CALIBRATE = ("--requests", "4", "--max-tokens", "40", "--menu", MENU, "--bins", "4")
TUNE = ("--requests", "3", "--max-tokens", "16", "--menu", MENU, "--concurrency", "1,4",
        "--iterations", "0")  # fmt: skip
BENCH = ("--concurrency", "1,4", "--requests", "4", "--max-tokens", "32", "--block-size", "8",
         "--methods", "linear,overlap,tidar,adaptive,recguide")  # fmt: skip
STATE = ("request", "round", "block_size", "chosen", "accepted", "matched", "verdict", "branch")

ROW = ("tokens", "rounds", "forwards", "reused", "round_tokens", "round_block", "round_source",
       "round_accepted")  # fmt: skip


def call(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


@contextmanager
def surroundings(folder):
    """The folder, and what a CPU server needs in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("RECGUIDE_DATA_DIR", raising=False)
        patch.setenv("PYTHONPATH", str(HERE / "shims"))
        for name, value in CHECKS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """The four commands in a folder of their own, one server each; their JSON and the folder."""
    folder = tmp_path_factory.mktemp("measuring")
    with surroundings(folder):
        said = {
            "profile": call("profile", "--engine", "sglang", *PROFILE),
            "calibrate": call("calibrate", "--engine", "sglang", *CALIBRATE),
            "tune": call("tune", "--engine", "sglang", *TUNE, "--no-served"),
        }
        policy = ("--policy", said["tune"][0]["policy"])
        said["bench"] = call("bench", "--engine", "sglang", *BENCH, *policy, "--out", "run")
        fixed = ("--methods", "linear,overlap,tidar", "--no-check", "--out", "embedded")
        said["embedded"] = call("bench", *BENCH, *fixed)
    return folder, said


def test_the_cost_table_holds_the_served_models_forwards(chain):
    folder, said = chain
    record, _ = said["profile"]
    assert record["path"].endswith("cpu-nld-tiny-sglang.cost.arrow")
    table = read_table(folder / record["path"], "cost")
    about = table.provenance
    assert about["engine"].startswith("sglang 0.5.23")
    assert (about["attention"], about["graph"], about["tp"]) == ("sglang rows, torch", "eager", "1")
    assert set(table.columns["kind"]) == {
        "ar",
        "draft",
        "verify",
        "fused",
        "mixed",
        "prefill",
    }
    assert (table.columns["mean_ms"] > 0).all()
    assert set(table.columns["origin"]) == {"measured"}


def test_the_trace_is_the_embedded_engines(chain, tmp_path):
    """Shadow rounds through SGLang's rows accept what the embedded engine's do."""
    folder, said = chain
    files = said["calibrate"][0]["files"]
    served = read_table(folder / files["trace"], "trace")
    assert served.provenance["engine"] == "sglang"
    prompts = load_prompts(["demo"]).prompts
    settings = ShadowSettings(requests=4, max_tokens=40, menu=(1, 4, 8))
    other = collect(select(prompts, 4, 0), settings, tmp_path)

    def keyed(table):
        columns = [table.columns[name].tolist() for name in STATE]
        return sorted(zip(*columns, strict=True))

    assert keyed(served) == keyed(other)


def test_tune_makes_a_policy_from_the_engines_own_tables(chain):
    folder, said = chain
    report, _ = said["tune"]
    file = read_policy(folder / report["policy"])
    assert report["policy"].endswith("cpu-nld-tiny-sglang.policy.json")
    assert file.provenance["engine"] == "sglang"
    assert file.provenance["cost_hash"] == said["profile"][0]["sha256"]
    assert file.provenance["trace_hash"] == said["calibrate"][0]["hashes"]["trace"]
    assert "served" not in report


@pytest.mark.slow
def test_tune_serves_its_policy_beside_the_baselines(chain):
    """The recordings are there already, so one more server is all that this takes."""
    folder, _ = chain
    with surroundings(folder):
        report, shown = call(
            "tune", "--engine", "sglang", *TUNE, "--out", "runs/tables/served.policy.json"
        )
    assert [m["concurrency"] for m in report["served"]] == [1, 4]
    for load in report["served"]:
        assert {"ar", "recguide"} <= set(load["methods"])
        assert all(tps > 0 for tps in load["methods"].values())
        assert load["tau"]["ar"] == 2.0
        assert load["failed"] == 0
        assert set(load["lossless"].values()) <= {"exact", "near-tie"}
    assert "Through the SGLang server" in shown


def test_bench_rows_are_those_of_other_runs(chain):
    folder, said = chain
    record, _ = said["bench"]
    embedded, _ = said["embedded"]
    assert record["schema"] == embedded["schema"]
    assert record["run"]["engine"]["name"].startswith("sglang 0.5.23")
    assert set(embedded["rows"][0]) == set(record["rows"][0])
    assert {row["lossless"] for row in record["rows"]} == {"exact"}
    assert {row["failed"] for row in record["rows"]} == {0}
    for row in record["rows"]:
        assert row["steps"] > 0 and row["query_tokens_per_forward"] >= 1
        assert row["tau"] > 2.0 or row["method"] in ("adaptive", "recguide")
    assert (folder / "run" / "report.html").is_file()


@pytest.mark.parametrize("method", ["linear", "overlap", "tidar"])
def test_requests_are_decided_as_by_the_embedded_engine(chain, method):
    """Rounds, forwards, reuse and accepted lengths of every request, whichever engine ran it."""
    folder, _ = chain

    def rounds(run):
        rows = [row for row in read_run(folder / run)[1] if not row.warmup]
        return {
            row.key: [getattr(row, name) for name in ROW]
            for row in rows
            if row.cell.startswith(f"{method}/")
        }

    served, embedded = rounds("run"), rounds("embedded")
    assert served == embedded
    assert all(found[1] > 0 for found in served.values())
