"""Two tensor-parallel ranks on one CPU: shards of heads, vocabulary and adapter."""

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from checkpoints import published_config, write_checkpoint
from engines import Embedded, greedy, plain_tokenizer, run_sglang

from recguide_core.sglang_plugin.settings import PluginSettings


def test_two_ranks_give_the_tokens_of_one(tmp_path):
    checkpoint = plain_tokenizer(write_checkpoint(tmp_path / "model", published_config("8b")))
    requests = [greedy(f"r{n}", range(130, 130 + n), 40) for n in (12, 31)]
    record = run_sglang(
        tmp_path,
        [{"requests": requests}],
        PluginSettings(method="overlap", block=6),
        {"tp_size": 2, "context_length": 512},
        model=checkpoint,
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
    )
    done = Embedded(checkpoint, max_positions=512).run(requests)
    for request, answer in zip(requests, record["waves"][0], strict=True):
        assert answer["tokens"] == done[request["key"]].tokens.tolist()
