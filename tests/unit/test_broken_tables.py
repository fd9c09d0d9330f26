"""Files of tables and policies that are broken in the ways files break: one cause, one remedy.

The files lie in `tests/fixtures/tables`; `tests/support/broken_tables.py` made them.
"""

from pathlib import Path

import pytest

from recguide_core import tables
from recguide_core.errors import DataError, MismatchError

FILES = Path(__file__).parents[1] / "fixtures" / "tables"
EVERY_TABLE = [
    ("empty", "is empty", "Make it again"),
    ("text", "is not an Arrow IPC file", "written by recguide"),
    ("cut", "is cut off or damaged", "Copy it again"),
    ("magic_only", "is cut off or damaged", "Copy it again"),
    ("gzipped", "is gzip-compressed", "gunzip"),
    ("other_version", "has the version recguide.table/9", "this version"),
    ("foreign", "is not a recguide.table/1 table", "written by recguide"),
    ("no_provenance", "does not say its model, model_hash", "provenance"),
    ("bad_provenance", "provenance of", "again"),
]


def refused(error: DataError, name: str, cause: str, remedy: str) -> None:
    assert name in error.cause
    assert cause in error.cause
    assert remedy in error.remedy
    assert "\n" not in error.cause + error.remedy


@pytest.mark.parametrize("kind", ["trace", "cost"])
def test_the_whole_files_are_read(kind):
    table = tables.read_table(FILES / f"good.{kind}.arrow", kind)
    assert len(table) == {"trace": 3, "cost": 2}[kind]
    assert table.provenance["model"] == "nld-tiny"
    assert tables.read_policy(FILES / "good.policy.json").settings == {"delta": 0.5}


@pytest.mark.parametrize("kind", ["trace", "cost"])
@pytest.mark.parametrize(("name", "cause", "remedy"), EVERY_TABLE)
def test_a_broken_table_is_named_with_its_fault(kind, name, cause, remedy):
    file = f"{name}.{kind}.arrow"
    with pytest.raises(DataError) as caught:
        tables.read_table(FILES / file, kind)
    refused(caught.value, file, cause, remedy)


@pytest.mark.parametrize(
    ("file", "cause", "remedy"),
    [
        ("no_column.trace.arrow", "lacks the column(s) accepted", "data, request, round"),
        ("no_column.cost.arrow", "lacks the column(s) mean_ms", "requests, query_tokens"),
        ("edited.cost.arrow", "does not match its own hash", "again"),
        ("negative.cost.arrow", "mean_ms = -2.5 in row 1", "Remake"),
        ("nan.cost.arrow", "mean_ms = nan in row 1", "Remake"),
    ],
)
def test_a_table_with_wrong_content_is_named_with_its_fault(file, cause, remedy):
    with pytest.raises(DataError) as caught:
        tables.read_table(FILES / file, file.split(".")[1])
    refused(caught.value, file, cause, remedy)


def test_a_table_of_another_kind_or_model():
    with pytest.raises(DataError, match="is a cost table, not a trace table"):
        tables.read_table(FILES / "good.cost.arrow", "trace")
    table = tables.read_table(FILES / "good.trace.arrow", "trace")
    with pytest.raises(MismatchError) as caught:
        tables.check_fit(table, "1" * 64)
    refused(caught.value, "nld-tiny (000000000000)", "not with the one in use (1111", "--force")


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("empty", "is not JSON (line 1", "again"),
        ("cut", "is not JSON", "again"),
        ("list", "is not a recguide.policy/1 file", "tune"),
        ("foreign", "is not a recguide.policy/1 file", "tune"),
        ("other_version", "has the version recguide.policy/7", "tune"),
        ("edited", "was changed after it was written", "tune"),
        ("no_model", "does not say its model_hash", "tune"),
    ],
)
def test_a_broken_policy_is_named_with_its_fault(name, cause, remedy):
    file = f"{name}.policy.json"
    with pytest.raises(DataError) as caught:
        tables.read_policy(FILES / file)
    refused(caught.value, file, cause, remedy)


def test_no_file_at_all():
    with pytest.raises(DataError, match="no trace table at") as caught:
        tables.read_table(FILES / "absent.trace.arrow", "trace")
    refused(caught.value, "absent.trace.arrow", "no trace table", "recguide calibrate")
    with pytest.raises(DataError, match="does not exist"):
        tables.read_policy(FILES / "absent.policy.json")
