"""Broken tables and policies as a user meets them: exit code 1, one cause, one remedy."""

from pathlib import Path

import pytest

FILES = Path(__file__).parents[1] / "fixtures" / "tables"
SIMULATE = ("bench", "--simulate", "--model", "nld-8b", "--concurrency", 1, "--traces")
TUNE = ("tune", "--traces")
POLICY = ("bench", "--methods", "adaptive", "--requests", 1, "--concurrency", 1, "--policy")


@pytest.mark.parametrize("command", [SIMULATE, TUNE], ids=["bench", "tune"])
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("empty", "is empty"),
        ("cut", "is cut off or damaged"),
        ("gzipped", "is gzip-compressed"),
        ("other_version", "has the version recguide.table/9"),
        ("no_column", "lacks the column(s) accepted"),
    ],
)
def test_a_broken_trace_table(recguide, assert_refused, command, name, cause):
    file = FILES / f"{name}.trace.arrow"
    assert_refused(recguide(*command, file), 1, cause)
    assert file.name in recguide(*command, file).stderr


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("cut", "is not JSON", "again"),
        ("other_version", "has the version recguide.policy/7", "tune"),
        ("edited", "was changed after it was written", "tune"),
        ("good", "model", "--force"),
    ],
)
def test_a_broken_policy_or_one_of_another_model(recguide, assert_refused, name, cause, remedy):
    assert_refused(recguide(*POLICY, FILES / f"{name}.policy.json"), 1, cause, remedy)
