"""The run folder: complete rows, resume by cell, and what it refuses."""

import json

import pyarrow.parquet as pq
import pytest

from recguide_core.bench.rows import RequestRow
from recguide_core.bench.store import RunFolder, read_run
from recguide_core.errors import DataError, MismatchError, UsageError

ABOUT = {"settings": {"seed": 0, "check": True}, "model_hash": "m", "prompts_hash": "p"}


def row(cell: str, index: int, **more) -> RequestRow:
    return RequestRow(
        cell, index, f"p/{index}", "h", "demo", "math", 3, 8, 0.0, finish="stop", tokens=[1], **more
    )


def started(path, **options) -> RunFolder:
    folder = RunFolder(path)
    folder.start(ABOUT, **{"resume": False, "overwrite": False, **options})
    return folder


def test_rows_are_there_before_the_cell_ends(tmp_path):
    folder = started(tmp_path / "run")
    folder.add_request(row("ar@1", 0))
    _, rows, cells = read_run(tmp_path / "run")
    assert [r.index for r in rows] == [0]
    assert cells == {}


def test_a_finished_cell_keeps_the_checked_rows(tmp_path):
    folder = started(tmp_path / "run")
    folder.add_request(row("ar@1", 0))
    folder.add_cell("ar@1", {"tps": 5.0}, [row("ar@1", 0, lossless="exact")])
    _, rows, cells = read_run(tmp_path / "run")
    assert [r.lossless for r in rows] == ["exact"]
    assert cells == {"ar@1": {"tps": 5.0}}


def test_resume_drops_the_rows_of_an_unfinished_cell(tmp_path):
    folder = started(tmp_path / "run")
    folder.add_cell("ar@1", {"tps": 5.0}, [row("ar@1", 0)])
    folder.add_request(row("ar@8", 0))
    with (tmp_path / "run" / "requests.jsonl").open("a") as file:
        file.write('{"key": "ar@8#1", "cell": "ar')
    again = started(tmp_path / "run", resume=True)
    assert list(again.finished_cells()) == ["ar@1"]
    assert [r.cell for r in read_run(tmp_path / "run")[1]] == ["ar@1"]


def test_resume_refuses_other_settings_and_names_them(tmp_path):
    started(tmp_path / "run")
    other = {**ABOUT, "settings": {"seed": 1, "check": False}}
    with pytest.raises(MismatchError, match="other settings: seed"):
        RunFolder(tmp_path / "run").start(other, resume=True, overwrite=False)


@pytest.mark.parametrize("key", ["model_hash", "prompts_hash"])
def test_resume_refuses_another_model_or_other_prompts(tmp_path, key):
    started(tmp_path / "run")
    with pytest.raises(MismatchError, match=key):
        RunFolder(tmp_path / "run").start({**ABOUT, key: "x"}, resume=True, overwrite=False)


def test_resume_without_a_run(tmp_path):
    with pytest.raises(UsageError, match="no run to resume"):
        started(tmp_path / "run", resume=True)


def test_a_run_is_not_overwritten_unasked(tmp_path):
    folder = started(tmp_path / "run")
    folder.add_cell("ar@1", {"tps": 5.0}, [])
    with pytest.raises(UsageError, match="already holds a run"):
        started(tmp_path / "run")
    assert started(tmp_path / "run", overwrite=True).finished_cells() == {}


def test_parquet_copy_has_every_row(tmp_path):
    folder = started(tmp_path / "run")
    evidence = {"position": 3, "expected": 1, "got": 2, "gap": 1e-5}
    rows = [row("ar@1", 0), row("ar@1", 1, lossless="near-tie", evidence=evidence)]
    folder.add_cell("ar@1", {}, rows)
    folder.finish({"schema": "recguide.bench/1", "rows": []})
    table = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    assert [r["key"] for r in table] == ["ar@1#0", "ar@1#1"]
    assert json.loads(table[1]["evidence"]) == evidence
    assert set(rows[0].as_record()) == set(table[0])


def test_not_a_run(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        read_run(tmp_path)


def test_a_run_of_another_schema(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": "recguide.run/9"}')
    with pytest.raises(DataError, match=r"recguide\.run/9"):
        read_run(tmp_path)
