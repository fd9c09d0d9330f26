"""Probes over scattered slots, without SGLang: the jobs of the embedded engine, same answers."""

import json

import numpy as np
import pytest
from rows_world import Module, scattered_cache

from recguide_core.calibration.record import Recorder
from recguide_core.calibration.recording import GRIDS, load_recordings
from recguide_core.calibration.shadow import ShadowDecoder, ShadowPrompt
from recguide_core.engine.machine import EmbeddedMachine
from recguide_core.errors import CapacityError
from recguide_core.sglang_plugin.executors import FlatExecutor
from recguide_core.sglang_plugin.graphs import MOST_TOKENS
from recguide_core.sglang_plugin.machine import FIRST_ROW, ServedMachine
from recguide_core.sglang_plugin.probe import Station, about_server, run_probe
from recguide_core.tables import read_json, read_rows

MENU, TOKENS = (1, 4, 8), 24
EXACT = ("request", "round", "block_size", "chosen", "committed", "accepted", "matched", "full",
         "eos", "reject_position", "risky", "top1", "top2", "verdict", "branch")  # fmt: skip


@pytest.fixture
def machine(embedded):
    """The transformer behind a row table and a pool, as `RecGuideWorker` finds them."""
    model = embedded.model
    cache = scattered_cache(model.config)
    cache.table.zero_()
    for pool in (*cache.k, *cache.v):
        pool.zero_()
    executor = FlatExecutor(Module(model), cache)
    return ServedMachine(executor, cache, model.config, cache.table.shape[1] - 64)


@pytest.fixture
def run(machine, tmp_path):
    """Runs a job; what it wrote and the progress that it told last."""

    def call(station=None, **job):
        files = {"result": tmp_path / "result.json", "progress": tmp_path / "progress.json"}
        path = tmp_path / "job.json"
        path.write_text(json.dumps({**job, **{k: str(v) for k, v in files.items()}}))
        run_probe(path, station or Station(machine), {"engine": "test"})
        if not files["result"].is_file():
            return None, None
        return read_json(files["result"]), read_json(files["progress"])

    return call


@pytest.fixture
def few(prompts):
    return [ShadowPrompt("demo", f"p{i}", np.asarray(ids, np.int64)) for i, ids in
            enumerate(prompts[:3])]  # fmt: skip


def plain(prompts):
    return [{"data": p.data, "name": p.name, "tokens": p.tokens.tolist()} for p in prompts]


def test_shadow_rounds_are_those_of_the_embedded_engine(run, few, embedded, tmp_path):
    log = tmp_path / "log.jsonl"
    result, progress = run(
        kind="shadow", prompts=plain(few), menu=list(MENU), seed=3, max_tokens=TOKENS, batch=2,
        log=str(log),
    )  # fmt: skip
    decoder = ShadowDecoder(
        EmbeddedMachine(embedded.model), MENU, seed=3, max_tokens=TOKENS, batch=2
    )
    expected = [row for rows in decoder.run(few) for row in rows]
    lines = read_rows(log)
    mine = [line for line in lines if not line.get("end")]
    assert [line["request"] for line in lines if line.get("end")]
    assert result == {"fitting": 3, "about": {"engine": "test"}}
    assert (progress["done"], progress["total"]) == (3, 3)
    assert len(mine) == len(expected) > 0
    for ours, theirs in zip(mine, expected, strict=True):
        assert {k: ours[k] for k in EXACT} == {k: theirs[k] for k in EXACT}
        np.testing.assert_allclose(ours["entropy"], theirs["entropy"], atol=1e-3)


def test_recordings_are_those_of_the_embedded_engine(run, few, embedded, tmp_path):
    path, about = tmp_path / "fresh.npz", {"blocks": [4, 8]}
    run(
        kind="record", prompts=plain(few), blocks=[4, 8], max_tokens=12, batch=2,
        recordings=str(path), about=about,
    )  # fmt: skip
    recorder = Recorder(EmbeddedMachine(embedded.model), (4, 8), max_tokens=12, batch=2)
    expected = {one.name: one for one in recorder.record(few)}
    found = load_recordings(path, about)
    assert {one.name for one in found} == set(expected)
    for one in found:
        other = expected[one.name]
        assert np.array_equal(one.text, other.text)
        for grid in GRIDS:
            mine, theirs = getattr(one, grid), getattr(other, grid)
            if mine.dtype.kind == "f":
                np.testing.assert_allclose(mine, theirs, atol=1e-3)
            else:
                assert np.array_equal(mine, theirs), grid


POINTS = [
    {"kind": "ar", "requests": 2, "block": 1, "context": 16, "branches": 0},
    {"kind": "fused", "requests": 2, "block": 4, "context": 16, "branches": 3},
    {"kind": "prefill", "requests": 1, "block": 64, "context": 0, "branches": 0},
]


def test_forwards_are_timed_until_rank_zero_says_stop(run, machine):
    result, progress = run(kind="profile", points=POINTS, budget_s=60.0, cpu_time=False)
    assert all(len(times) > 1 and min(times) > 0 for times in result["timings"])
    assert progress["done"] == progress["total"]
    # The other ranks must not decide by their own clocks when to stop.
    stopped = Station(machine, agree=lambda own: False)
    result, _ = run(stopped, kind="profile", points=POINTS, budget_s=60.0, cpu_time=False)
    assert [len(times) > 0 for times in result["timings"]] == [True, False, False]


def test_only_the_first_rank_writes(run, machine):
    other = Station(machine, leader=False)
    result, _ = run(other, kind="profile", points=POINTS[:1], budget_s=1.0, cpu_time=False)
    assert result is None


def test_lines_do_not_overlap_and_are_taken_away(machine):
    machine.open(3, 40, 32)
    table = machine.cache.table
    own = table[FIRST_ROW : FIRST_ROW + 3, :72].reshape(-1).tolist()
    assert len(set(own)) == len(own) and 0 not in own, "slot 0 is padding"
    assert max(own) < len(machine.cache.k[0])
    assert not table[0].any(), "row 0 is padding"
    machine.close()
    assert not table.any()


@pytest.mark.parametrize("shape", [(8, 16, 8), (2, 10_000, 8)])
def test_a_pool_that_is_too_small_says_so(machine, shape):
    machine.context = 100_000
    with pytest.raises(CapacityError, match="does not hold"):
        machine.open(*shape)


def test_a_result_says_where_it_was_measured(machine):
    about = about_server("cpu", machine.executor, 2)
    assert (about["attention"], about["graph"], about["tp"]) == ("sglang rows, torch", "eager", "2")
    assert about["dtype"] == "float32" and about["driver"] == "none"
    machine.executor.why_twin = None
    machine.executor.graphs = object()
    about = about_server("cpu", machine.executor, 1)
    assert about["attention"] == "sglang rows, packed kernel"
    assert about["graph"] == f"captured up to {MOST_TOKENS} tokens"
