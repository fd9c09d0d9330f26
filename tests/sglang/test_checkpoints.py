"""Checkpoints in the published layout, served by SGLang: names, shards, adapter, YaRN, heat.

Small random weights with the published keys. The query temperature acts from position 64 on here,
so that short texts reach it.
"""

import json

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

import numpy as np
from checkpoints import published_config, write_checkpoint
from engines import Embedded, greedy, plain_tokenizer, run_sglang

from recguide_core.sglang_plugin.settings import PluginSettings

SHAPES = {"14b": {"shards": 3}, "3b": {"adapter": {}}}
"""Sharded with an adapter and hidden above heads x head_dim; one file without one, below it."""
RANKS = {"14b": 2, "3b": 1}
"""Two tensor-parallel ranks share the larger: shards of heads, vocabulary and adapter."""
TOKENS = 72


def config_of(size):
    config = published_config(size)
    config["rope_parameters"]["original_max_position_embeddings"] = 64
    return config


@pytest.fixture(scope="module", params=["14b", pytest.param("3b", marks=pytest.mark.slow)])
def run(request, tmp_path_factory):
    size = request.param
    folder = tmp_path_factory.mktemp(size)
    checkpoint = write_checkpoint(folder / "model", config_of(size), **SHAPES[size])
    plain_tokenizer(checkpoint)
    rng = np.random.default_rng(5)
    requests = [greedy(f"{size}-{n}", rng.integers(130, 380, n), TOKENS) for n in (30, 90)]
    trace = folder / "trace.jsonl"
    record = run_sglang(
        folder,
        [{"requests": requests[:1]}, {"requests": requests}],
        PluginSettings(method="overlap", block=6, trace=str(trace)),
        {"context_length": 512, "tp_size": RANKS[size]},
        model=checkpoint,
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(RANKS[size])))},
    )
    embedded = Embedded(checkpoint, max_positions=512)
    done = embedded.run(requests)
    embedded.run(requests[:1], "overlap", 6)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    return size, record, [done[r["key"]].tokens.tolist() for r in requests], lines, embedded.rounds


def test_a_published_layout_serves_the_tokens_of_ar(run):
    _, record, expected, _, _ = run
    assert record["waves"][0][0]["tokens"] == expected[0]
    assert [a["tokens"] for a in record["waves"][1]] == expected


def test_drafts_are_those_of_the_embedded_engine(run):
    """Drafts come through the adapter; a wrong delta would change what is accepted."""
    _, _, _, lines, rounds = run
    for mine, other in zip(lines[: len(rounds)], rounds, strict=True):
        for line in (mine, other):
            line.pop("entropy")
        assert mine == other


def test_the_adapter_is_read_where_there_is_one(run, tmp_path):
    size, _, _, lines, rounds = run
    assert rounds and lines
    bare = write_checkpoint(tmp_path / "bare", config_of(size), adapter={})
    embedded = Embedded(bare, max_positions=512)
    rng = np.random.default_rng(5)
    embedded.run([greedy(f"{size}-30", rng.integers(130, 380, 30), TOKENS)], "overlap", 6)
    strip = [{k: v for k, v in line.items() if k != "entropy"} for line in embedded.rounds]
    same = strip == [{k: v for k, v in line.items() if k != "entropy"} for line in rounds]
    assert same == (size == "3b")
