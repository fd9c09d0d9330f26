"""Recorded loads: Mooncake's form, in milliseconds or seconds, valid and broken."""

from pathlib import Path

import pytest

from recguide_core.datasets.trace import read_trace
from recguide_core.errors import DataError, UsageError

FILES = Path(__file__).parents[2] / "fixtures" / "traces"


def read(name: str, unit: str = "auto", **options):
    return read_trace(FILES / name, unit, **options)


def test_arrivals_count_from_the_first_request():
    trace = read("valid/mooncake.jsonl")
    assert trace.unit == "ms"
    assert [r.arrival_s for r in trace.requests] == [0.0, 0.0, 0.75, 4.5]
    assert [(r.input_tokens, r.output_tokens) for r in trace.requests] == [
        (40, 6),
        (600, 4),
        (580, 5),
        (12, 3),
    ]
    assert [r.blocks for r in trace.requests] == [(3,), (0, 1), (0, 2), ()]
    assert trace.as_record()["longest_gap_s"] == 3.75


def test_a_fraction_tells_seconds_and_the_unit_can_be_said():
    assert [r.arrival_s for r in read("valid/seconds.jsonl").requests] == [0.0, 1.25]
    assert read("valid/seconds.jsonl").unit == "s"
    assert read("valid/mooncake.jsonl", "s").seconds == 4500.0
    assert read("valid/table.csv").seconds == 1.5


@pytest.mark.parametrize(
    ("name", "line", "cause"),
    [
        ("unsorted.jsonl", 2, "timestamp 4 lies before the 5 of line 1"),
        ("zero_input.jsonl", 1, "'input_length' is 0"),
        ("negative_output.jsonl", 1, "'output_length' is -2"),
        ("negative_time.jsonl", 1, "timestamp is -1"),
        ("text_time.jsonl", 1, "'timestamp' is 'soon', not a number"),
        ("no_timestamp.jsonl", 1, "no column 'timestamp' (columns present: time,"),
        ("fraction.jsonl", 1, "'input_length' is 3.5"),
        ("truth.jsonl", 1, "'output_length' is True, not a number"),
        ("hash_text.jsonl", 1, "'hash_ids' must be a list"),
        ("cut.jsonl", 2, "not JSON"),
        ("list.jsonl", 1, "must be an object"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(name, line, cause):
    with pytest.raises(DataError) as caught:
        read(f"broken/{name}")
    assert f"{name}:{line}: " in caught.value.cause
    assert cause in caught.value.cause
    assert "\n" not in caught.value.cause
    assert "--skip-bad-rows" in caught.value.remedy


def test_bad_rows_are_skipped_and_listed_on_request():
    trace = read("broken/unsorted.jsonl", skip_bad_rows=True)
    assert [r.line for r in trace.requests] == [1, 3]
    assert trace.requests[-1].arrival_s == pytest.approx(0.001)
    assert [(s.line, "lies before" in s.cause) for s in trace.skipped] == [(2, True)]


def test_a_trace_of_nothing():
    with pytest.raises(DataError, match="is empty"):
        read("broken/empty.jsonl")
    with pytest.raises(DataError, match="no request to replay"):
        read("broken/zero_input.jsonl", skip_bad_rows=True)
    with pytest.raises(UsageError, match="--time-unit is 'min'"):
        read("valid/mooncake.jsonl", "min")


def test_requests_beyond_the_context():
    trace = read("valid/mooncake.jsonl")
    assert trace.within(604).requests == trace.requests
    with pytest.raises(DataError, match=r"mooncake\.jsonl:2: 600 prompt and 4 answer tokens"):
        trace.within(603)
    kept = read("valid/mooncake.jsonl", skip_bad_rows=True).within(603)
    assert [r.line for r in kept.requests] == [1, 3, 4]
    assert kept.skipped[0].line == 2


def test_what_is_replayed_is_named_by_its_hash():
    trace = read("valid/mooncake.jsonl")
    assert trace.digest == read("valid/mooncake.jsonl").digest
    assert trace.digest != trace.head(3).digest
    assert trace.digest != read("valid/mooncake.jsonl", "s").digest
