"""Writes the fixtures of broken tables and policies: `python tests/support/broken_tables.py`.

They are files, not bytes made by the tests, so that a change of the writer cannot make a test of
the reader pass by itself.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from recguide_core import tables

FOLDER = Path(__file__).parents[1] / "fixtures" / "tables"
MADE = {
    "model": "nld-tiny",
    "model_hash": "0" * 64,
    "device": "cpu-any",
    "date": "2026-11-29",
    "source": "fixture",
    "data": "demo",
    "seed": "0",
    "dtype": "float32",
    "attention": "torch",
    "graph": "eager",
}
TRACE = {
    "data": ["demo"] * 3,
    "request": ["a", "a", "b"],
    "round": [0, 1, 0],
    "block_size": [8, 8, 4],
    "chosen": [True] * 3,
    "committed": [10, 13, 9],
    "accepted": [3, 8, 1],
    "matched": [2, 7, 0],
    "full": [False, True, False],
    "eos": [False] * 3,
    "reject_position": [3, -1, 1],
    "entropy": [[0.5, 0.25, 1.5], [0.125] * 7, [2.0]],
    "margin": [[0.5] * 8, [0.75] * 8, [0.25] * 4],
    "confidence": [[0.5] * 8, [0.875] * 8, [0.5] * 4],
    "risky": [[3], [], [1]],
    "top1": [[17], [], [4]],
    "top2": [[18], [], [5]],
    "verdict": [17, -1, 5],
    "branch": ["correction", "", ""],
}
COST = {
    "kind": ["draft", "verify"],
    "requests": [1, 2],
    "query_tokens": [8, 16],
    "kv_tokens": [100, 200],
    "block_size": [8, 8],
    "branches": [0, 0],
    "mean_ms": [1.5, 2.5],
    "std_ms": [0.125, 0.0],
    "count": [10, 10],
    "origin": ["measured", "modelled"],
}


def rewrite(source: Path, target: Path, *, drop=None, metadata=None) -> None:
    """A table with a column left out, or with other metadata; its content hash stays."""
    with pa.memory_map(str(source)) as file:
        table = pa.ipc.open_file(file).read_all()
    about = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    if drop:
        table = table.drop_columns([drop])
    table = table.replace_schema_metadata({**about, **(metadata or {})})
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def replaced(raw: bytes, old: bytes, new: bytes) -> bytes:
    assert raw.count(old) == 1 and len(old) == len(new)
    return raw.replace(old, new)


def tables_of(kind: str, columns: dict) -> None:
    good = FOLDER / f"good.{kind}.arrow"
    tables.write_table(good, tables.make_table(kind, columns, MADE))
    raw = good.read_bytes()

    def put(name: str, content: bytes) -> None:
        (FOLDER / f"{name}.{kind}.arrow").write_bytes(content)

    put("empty", b"")
    put("text", b"round,accepted\n0,3\n")
    put("cut", raw[: len(raw) * 2 // 3])
    put("magic_only", raw[:8])
    put("gzipped", gzip.compress(raw, mtime=0))
    rewrite(good, FOLDER / f"other_version.{kind}.arrow", metadata={"schema": "recguide.table/9"})
    rewrite(good, FOLDER / f"no_provenance.{kind}.arrow", metadata={"provenance": "{}"})
    rewrite(good, FOLDER / f"bad_provenance.{kind}.arrow", metadata={"provenance": "{"})
    rewrite(good, FOLDER / f"foreign.{kind}.arrow", metadata={"schema": "somebody.else/1"})


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    tables_of("trace", TRACE)
    tables_of("cost", COST)
    trace, cost = FOLDER / "good.trace.arrow", FOLDER / "good.cost.arrow"
    rewrite(trace, FOLDER / "no_column.trace.arrow", drop="accepted")
    rewrite(cost, FOLDER / "no_column.cost.arrow", drop="mean_ms")
    for value, name in ((9.5, "edited"), (-2.5, "negative"), (float("nan"), "nan")):
        old, new = np.float64(2.5).tobytes(), np.float64(value).tobytes()
        (FOLDER / f"{name}.cost.arrow").write_bytes(replaced(cost.read_bytes(), old, new))
    policies()


def policies() -> None:
    made = {**MADE, "cost_hash": "c" * 64, "value_hash": "v" * 64}
    good = FOLDER / "good.policy.json"
    tables.write_policy(good, {"delta": 0.5}, made)
    body = json.loads(good.read_text())

    def put(name: str, text: str) -> None:
        (FOLDER / f"{name}.policy.json").write_text(text)

    put("empty", "")
    put("cut", good.read_text()[:120])
    put("list", "[]\n")
    put("edited", json.dumps({**body, "settings": {"delta": 0.9}}))
    put("other_version", json.dumps({**body, "schema": "recguide.policy/7"}))
    put("foreign", json.dumps({**body, "schema": "somebody.else/1"}))
    put("no_model", json.dumps({k: v for k, v in body.items() if k != "model_hash"}))


if __name__ == "__main__":
    main()
