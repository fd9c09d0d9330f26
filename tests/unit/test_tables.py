"""Tables keep what they are given, and refuse what does not fit, with the reason."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core import tables
from recguide_core.errors import DataError, MismatchError

PROVENANCE = {
    "model": "nld-tiny",
    "model_hash": "a" * 64,
    "device": "cpu-any",
    "date": "2026-11-29",
    "source": "test",
    "dtype": "float32",
    "attention": "torch",
    "graph": "eager",
    "seed": "0",
    "data": "demo",
}


def cost_columns(**changes):
    columns = {
        "kind": ["draft", "verify"],
        "requests": [1, 2],
        "query_tokens": [8, 16],
        "kv_tokens": [100, 200],
        "block_size": [8, 8],
        "branches": [0, 0],
        "mean_ms": [1.5, 2.5],
        "std_ms": [0.1, 0.0],
        "count": [10, 10],
        "origin": ["measured", "modelled"],
    }
    return {**columns, **changes}


def trace_columns(entropies):
    n = len(entropies)
    lists = {name: [[] for _ in range(n)] for name in ("margin", "confidence")}
    ids = {name: [[1]] * n for name in ("risky", "top1", "top2")}
    return {
        "data": ["demo"] * n,
        "request": ["r"] * n,
        "round": list(range(n)),
        "block_size": [8] * n,
        "chosen": [True] * n,
        "committed": [10] * n,
        "accepted": [len(e) for e in entropies],
        "matched": [0] * n,
        "full": [False] * n,
        "eos": [False] * n,
        "reject_position": [-1] * n,
        "entropy": entropies,
        "verdict": [-1] * n,
        "branch": [""] * n,
        **lists,
        **ids,
    }


def test_round_trip_keeps_columns_provenance_and_hash(tmp_path):
    table = tables.make_table("cost", cost_columns(), PROVENANCE)
    path = tmp_path / "deep" / "t.arrow"
    digest = tables.write_table(path, table)
    again = tables.read_table(path, "cost")
    assert again.digest == digest == table.digest
    assert again.provenance == PROVENANCE
    assert again.columns["mean_ms"].tolist() == [1.5, 2.5]
    assert again.columns["kind"].tolist() == ["draft", "verify"]
    assert [p.name for p in path.parent.iterdir()] == ["t.arrow"]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.floats(0, 20, width=32), max_size=5),
        min_size=1,
        max_size=6,
    )
)
def test_list_columns_survive(tmp_path_factory, entropies):
    path = tmp_path_factory.mktemp("t") / "trace.arrow"
    tables.write_table(path, tables.make_table("trace", trace_columns(entropies), PROVENANCE))
    back = tables.read_table(path, "trace").columns["entropy"]
    assert [e.tolist() for e in back] == entropies


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": ["draft", "guess"]}, "guess"),
        ({"requests": [0, 1]}, "requests = 0 in row 0"),
        ({"mean_ms": [1.0, float("nan")]}, "mean_ms = nan in row 1"),
        ({"mean_ms": [1.0]}, "differ in length"),
        ({"mean_ms": ["fast", "slow"]}, "does not hold float64"),
        ({"kind": ["draft"] * 2, "requests": [1] * 2, "query_tokens": [8] * 2,
          "kv_tokens": [9] * 2}, "two rows for kind draft"),
    ],
)  # fmt: skip
def test_bad_columns_are_refused_with_the_reason(changes, reason):
    with pytest.raises(DataError, match=reason):
        tables.make_table("cost", cost_columns(**changes), PROVENANCE)


def test_missing_column_empty_table_and_missing_provenance():
    columns = cost_columns()
    del columns["count"]
    with pytest.raises(DataError, match=r"lacks the column.* count"):
        tables.make_table("cost", columns, PROVENANCE)
    with pytest.raises(DataError, match="empty"):
        tables.make_table("cost", {k: [] for k in cost_columns()}, PROVENANCE)
    with pytest.raises(DataError, match="does not say its device"):
        tables.make_table("cost", cost_columns(), {**PROVENANCE, "device": ""})


def test_foreign_damaged_and_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no cost table at"):
        tables.read_table(tmp_path / "none.arrow", "cost")
    text = tmp_path / "text.arrow"
    text.write_text("requests,mean_ms\n1,2\n")
    with pytest.raises(DataError, match="not an Arrow IPC file"):
        tables.read_table(text, "cost")
    path = tmp_path / "t.arrow"
    tables.write_table(path, tables.make_table("cost", cost_columns(), PROVENANCE))
    with pytest.raises(DataError, match="is a cost table, not a value table"):
        tables.read_table(path, "value")
    cut = tmp_path / "cut.arrow"
    cut.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="cut off or damaged"):
        tables.read_table(cut, "cost")
    plain = tmp_path / "plain.arrow"
    arrow = pa.table({"x": [1]})
    with pa.OSFile(str(plain), "wb") as sink, pa.ipc.new_file(sink, arrow.schema) as writer:
        writer.write_table(arrow)
    with pytest.raises(DataError, match=r"is not a recguide\.table/1 table"):
        tables.read_table(plain, "cost")


def test_changed_content_does_not_match_its_hash(tmp_path):
    path = tmp_path / "t.arrow"
    tables.write_table(path, tables.make_table("cost", cost_columns(), PROVENANCE))
    raw = path.read_bytes()
    changed = raw.replace(np.float64(2.5).tobytes(), np.float64(0.5).tobytes())
    assert changed != raw
    path.write_bytes(changed)
    with pytest.raises(DataError, match="does not match its own hash"):
        tables.read_table(path, "cost")


def test_tables_of_another_model_or_device():
    table = tables.make_table("cost", cost_columns(), PROVENANCE)
    assert tables.check_fit(table, "a" * 64) == []
    notes = tables.check_fit(table, "a" * 64, device="cpu: some name")
    assert len(notes) == 1 and "any CPU" in notes[0]
    with pytest.raises(MismatchError, match="measured on cpu-any, not on b200"):
        tables.check_fit(table, device="b200")
    with pytest.raises(MismatchError, match="made with model nld-tiny"):
        tables.check_fit(table, "b" * 64)
    assert len(tables.check_fit(table, "b" * 64, device="h200", force=True)) == 2
    named = tables.make_table("cost", cost_columns(), {**PROVENANCE, "device": "cpu: old"})
    with pytest.raises(MismatchError, match="measured on cpu: old"):
        tables.check_fit(named, device="cpu: new")


def test_policy_file_round_trip_edits_and_mismatch(tmp_path):
    path = tmp_path / "p.json"
    made = {
        "model": "m",
        "model_hash": "h" * 64,
        "device": "cpu-any",
        "cost_hash": "c" * 64,
        "value_hash": "v" * 64,
    }
    digest = tables.write_policy(path, {"delta": 0.5}, made)
    policy = tables.read_policy(path)
    assert policy.settings == {"delta": 0.5}
    assert policy.digest == digest
    assert tables.check_policy(policy, {"cost_hash": "c" * 64}) == []
    with pytest.raises(MismatchError, match="cost hash"):
        tables.check_policy(policy, {"cost_hash": "d" * 64})
    assert len(tables.check_policy(policy, {"cost_hash": "d" * 64}, force=True)) == 1
    edited = json.loads(path.read_text())
    edited["settings"]["delta"] = 0.9
    path.write_text(json.dumps(edited))
    with pytest.raises(DataError, match="was changed"):
        tables.read_policy(path)
    with pytest.raises(DataError, match="does not say its value_hash"):
        tables.write_policy(path, {}, {**made, "value_hash": ""})
    path.write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        tables.read_policy(path)


def test_log_drops_a_cut_line_and_resumes(tmp_path):
    log = tmp_path / "rounds.jsonl"
    tables.append_rows(log, [{"round": 0}, {"round": 1}])
    log.write_bytes(log.read_bytes()[:-4])
    assert tables.read_rows(log) == [{"round": 0}]
    tables.append_rows(log, [{"round": 1}])
    assert tables.read_rows(log) == [{"round": 0}, {"round": 1}]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")

    def fail(stream):
        stream.write(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        tables.write_whole(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_unknown_shipped_table_names_the_known():
    with pytest.raises(DataError, match=r"No cost table for 'b300/nld-8b'"):
        tables.shipped_path("b300/nld-8b", "cost")
