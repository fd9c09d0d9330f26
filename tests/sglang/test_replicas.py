"""Two data-parallel replicas behind one address: `recguide serve --dp 2` on a CPU."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import CHECKS, HERE

from recguide_core.bench.remote import parse_address
from recguide_core.bench.server_site import scrape
from recguide_core.sglang_plugin.launch import ServerConfig
from recguide_core.sglang_plugin.server import free_port, running_server
from recguide_core.sglang_plugin.settings import PluginSettings

pytestmark = pytest.mark.slow
TOKENS = 24


@pytest.fixture(scope="module")
def answers(tmp_path_factory, prompts):
    """Answers to every prompt, all at once, and the figures of `/metrics` after them."""
    config = ServerConfig(
        "nld-tiny",
        PluginSettings(method="overlap", block=8),
        port=free_port(),
        device="cpu",
        dp=2,
        extra=("--log-level", "warning", "--skip-server-warmup"),
    )
    env = {**CHECKS, "PYTHONPATH": str(HERE / "shims"), "HF_HUB_OFFLINE": "1"}
    folder = tmp_path_factory.mktemp("replicas")
    with running_server(config, folder=folder, env=env, up_within=300) as (address, _):

        def ask(ids):
            params = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True,
                      "custom_params": {"rounds": True}}  # fmt: skip
            body = {"input_ids": [int(i) for i in ids], "sampling_params": params}
            head = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/generate", json.dumps(body).encode(), head)
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, prompts))
        return found, scrape(parse_address(address, 30.0, None))


def test_every_replica_gives_the_tokens_of_ar(answers, autoregressive):
    for answer, expected in zip(answers[0], autoregressive, strict=True):
        assert answer["output_ids"] == expected[:TOKENS]


def test_both_replicas_served_and_were_counted_together(answers):
    found, figures = answers
    ranks = {answer["meta_info"].get("dp_rank") for answer in found}
    assert ranks in ({0, 1}, {None}), "one replica got everything"
    rounds = [about for a in found for about in a["meta_info"]["recguide"] if about is not None]
    assert figures["recguide:rounds_total"] >= len(rounds) > len(found)
    assert figures["recguide:round_tokens_total"] >= sum(accepted for _, accepted, *_ in rounds)
