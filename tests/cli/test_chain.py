"""profile -> calibrate -> tune -> a loaded policy, in small; and what each refuses."""

import json

import pytest

from recguide_core.errors import MismatchError
from recguide_core.tables import read_policy, read_table
from recguide_core.tuning.guidance import load_tuned

MENU = "1,4,8"
PROFILE = ("--requests", "1,4", "--block-size", "4,8", "--context", "32", "--budget", "3")
CALIBRATE = ("--requests", "6", "--max-tokens", "40", "--menu", MENU, "--bins", "4")
TUNE = ("--requests", "4", "--max-tokens", "24", "--menu", MENU, "--concurrency", "1,4")


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """The three commands in a folder of their own; their JSON and the folder."""
    from typer.testing import CliRunner

    from recguide_cli.app import app

    folder = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("RECGUIDE_DATA_DIR", raising=False)
        said = {}
        for name, arguments in (
            ("profile", (*PROFILE, "--any-cpu")),
            ("calibrate", CALIBRATE),
            ("tune", (*TUNE, "--iterations", "1")),
        ):
            result = CliRunner().invoke(app, [name, *arguments, "--json"])
            assert result.exit_code == 0, result.output
            said[name] = (json.loads(result.stdout), result.stderr)
    return folder, said


def test_calibrate_reports_value_quality_and_files(chain):
    folder, said = chain
    report, shown = said["calibrate"]
    assert report["menu"] == [1, 4, 8]
    assert report["accepted"]["1"] == 1.0
    assert 1 < report["accepted"]["4"] <= report["accepted"]["8"] + 0.5 <= 8.5
    assert report["rounds"] > 30
    for kind in ("trace", "value", "branch"):
        table = read_table(folder / report["files"][kind], kind)
        assert table.digest == report["hashes"][kind]
        assert table.provenance["device"] == "cpu-any"
    for part in ("V_B(s, z)", "worth it", "survival", "mean accepted length"):
        assert part in shown
    assert not list((folder / "runs" / "tables").glob("*.jsonl")), "the log ends with the run"


def test_tune_writes_a_policy_that_names_its_inputs(chain):
    folder, said = chain
    report, shown = said["tune"]
    file = read_policy(folder / report["policy"])
    assert file.digest == report["policy_hash"]
    calibrated = said["calibrate"][0]
    assert file.provenance["value_hash"] == calibrated["hashes"]["value"]
    assert file.provenance["branch_hash"] == calibrated["hashes"]["branch"]
    assert len(file.provenance["prompts"]) >= 6
    settings = file.settings
    assert settings["menu"] == [1, 4, 8]
    assert {"1", "2", "4"} == set(settings["rho"])
    assert all(rho > 0 for rho in settings["rho"].values())
    measured = {m["concurrency"]: m for m in report["measured"]}
    assert set(measured) == {1, 4}
    for m in measured.values():
        assert {"ar", "linear/4", "linear/8", "linear/16", "linear/32", "recguide"} <= set(
            m["methods"]
        )
        assert m["over_best"]["low"] <= m["over_best"]["gain"] <= m["over_best"]["high"]
        if not m["over_best"]["sure"]:
            assert "no sure gain" in " ".join(shown.split())
    assert report["held_out"] is True


def test_the_policy_loads_for_its_model_and_for_no_other(chain):
    folder, said = chain
    policy = folder / said["tune"][0]["policy"]
    made_for = read_policy(policy).provenance["model_hash"]
    tuned = load_tuned("nld-tiny", made_for, "cpu", policy=policy)
    assert tuned.guidance.menu == (1, 4, 8)
    assert tuned.guidance.hashes["value"] == said["calibrate"][0]["hashes"]["value"]
    assert any("cpu-any" in note for note in tuned.notes)
    with pytest.raises(MismatchError):
        load_tuned("nld-tiny", "another", "cpu", policy=policy)
    forced = load_tuned("nld-tiny", "another", "cpu", policy=policy, force=True)
    assert any("another" in note for note in forced.notes)


def test_refit_of_a_trace_needs_no_torch_and_repeats_the_table(chain, program):
    folder, said = chain
    report = said["calibrate"][0]
    trace = folder / report["files"]["trace"]
    code = (
        "import sys\n"
        "from recguide_cli.app import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'\n"
    )
    done = program(
        code, "calibrate", "--traces", str(trace), "--bins", "4", "--out", "again", "--json"
    )
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["accepted"] == report["accepted"]
    assert again["hashes"]["value"] == report["hashes"]["value"]


def test_a_trace_of_another_model_is_refused(chain, recguide, assert_refused, tmp_path):
    from recguide_core.tables import make_table, write_table

    folder, said = chain
    trace = read_table(folder / said["calibrate"][0]["files"]["trace"], "trace")
    other = make_table("trace", trace.columns, {**trace.provenance, "model_hash": "abcdef"})
    write_table(tmp_path / "other.trace.arrow", other)
    result = recguide("calibrate", "--traces", "other.trace.arrow", "--model", "nld-tiny")
    assert_refused(result, 1, "made with model nld-tiny (abcdef)")


def test_tables_that_do_not_belong_together_are_refused(chain, recguide, assert_refused, tmp_path):
    folder, _ = chain
    tables = folder / "runs" / "tables"
    refit = recguide(
        "calibrate",
        "--traces",
        tables / "cpu-nld-tiny.trace.arrow",
        "--bins",
        "3",
        "--out",
        tmp_path / "t",
    )
    assert refit.exit_code == 0, refit.output
    for kind in ("trace", "cost"):
        source = tables / f"cpu-nld-tiny.{kind}.arrow"
        (tmp_path / "t" / source.name).write_bytes(source.read_bytes())
    # Same trace, other bins: still a family. Then a value table of another trace.
    beyond = recguide("tune", "--tables", tmp_path / "t", "--menu", MENU, "--concurrency", "64")
    assert_refused(beyond, 1, "Concurrency 64 is outside the cost table", "recguide profile")
    lacking = recguide("tune", "--tables", tmp_path / "t", "--concurrency", "1")
    assert_refused(lacking, 1, "no rounds of B = 16", "--menu")


def test_missing_tables_name_the_command_that_makes_them(recguide, assert_refused, tmp_path):
    result = recguide("tune", "--tables", tmp_path, "--model", "nld-8b")
    assert_refused(result, 1, "There is no trace table", "recguide calibrate")


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("calibrate", "--menu", "8,4"), "ascend"),
        (("calibrate", "--menu", "1"), "drafts nothing"),
        (("calibrate", "--max-tokens", "40"), "leave too little"),
        (("calibrate", "--entropy-positions", "few"), "few"),
        (("calibrate", "--bins", "1"), "bins is 1"),
        (("tune", "--concurrency", "0"), "positive"),
        (("tune", "--requests", "1"), "requests is 1"),
        (("tune", "--cost", "a", "--clock", "b"), "Both --cost and --clock"),
    ],
)
def test_impossible_settings_are_usage_errors(recguide, assert_refused, arguments, cause):
    assert_refused(recguide(*arguments), 2, cause)


def test_a_named_set_that_cannot_be_found_is_no_demo(recguide, assert_refused):
    assert_refused(recguide("calibrate", "--data", "gsm8k"), 1, "gsm8k", "RECGUIDE_DATA_DIR")
