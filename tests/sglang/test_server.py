"""A whole server as `recguide serve --engine sglang` starts it, used by SGLang's own client."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import CHECKS, HERE

from recguide_core.model.registry import bundled_folder
from recguide_core.sglang_plugin.launch import ServerConfig
from recguide_core.sglang_plugin.server import running_server
from recguide_core.sglang_plugin.settings import PluginSettings

UP_WITHIN = 300
TOTAL, AT_ONCE = 64, 8


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def call(address, path, body=None, timeout=60):
    """(status, text) of a request; a body makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}{path}", data, head)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory, policy):
    config = ServerConfig(
        model="nld-tiny",
        plugin=PluginSettings(method="recguide", also=("linear",), policy=str(policy)),
        port=free_port(),
        device="cpu",
        extra=("--log-level", "warning", "--skip-server-warmup"),
    )
    env = {**CHECKS, "PYTHONPATH": str(HERE / "shims"), "HF_HUB_OFFLINE": "1"}
    folder = tmp_path_factory.mktemp("server")
    with running_server(config, folder=folder, env=env, up_within=UP_WITHIN) as found:
        yield found


@pytest.fixture(scope="module")
def bench(server, tmp_path_factory):
    """SGLang's own serving benchmark: 64 requests, at most 8 at once."""
    out = tmp_path_factory.mktemp("bench") / "out.jsonl"
    address, _ = server
    port = address.rsplit(":", 1)[1]
    argv = [
        sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang",
        "--host", "127.0.0.1", "--port", port, "--model", str(bundled_folder()),
        "--dataset-name", "random-ids", "--num-prompts", str(TOTAL), "--random-input-len", "48",
        "--random-output-len", "32", "--random-range-ratio", "0.5", "--max-concurrency",
        str(AT_ONCE), "--warmup-requests", "1", "--seed", "1", "--output-file", str(out),
        "--output-details",
        "--extra-request-body", json.dumps({"sampling_params": {"temperature": 0}}),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(HERE / "shims"), "HF_HUB_OFFLINE": "1",
           "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
    done = subprocess.run(
        ["nice", "-n", "5", *argv], env=env, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0 and out.is_file(), (done.stdout + done.stderr)[-4000:]
    return json.loads(out.read_text().splitlines()[-1]), done.stdout


def test_the_command_names_what_it_resolved(server, policy):
    _, command = server
    assert any(str(bundled_folder()) in note for note in command.notes)
    assert any(str(policy) in note for note in command.notes)


def test_chat_completions_answer(server):
    body = {
        "model": "nld-tiny",
        "messages": [{"role": "user", "content": "What is 17 plus 25?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    status, text = call(server[0], "/v1/chat/completions", body)
    assert status == 200
    assert json.loads(text)["choices"][0]["message"]["content"]


def test_an_unsupported_request_is_refused_with_its_reason(server):
    body = {"text": "1 + 1 =", "return_logprob": True, "sampling_params": {"max_new_tokens": 4}}
    status, text = call(server[0], "/generate", body)
    assert status == 400
    assert "return_logprob" in text


def test_sglangs_own_benchmark_completes_every_request(bench):
    record, printed = bench
    assert record["completed"] == TOTAL
    assert len([e for e in record["errors"] if e]) == 0
    assert 1.0 <= record["accept_length"] <= 32.0
    assert "Accept length" in printed


def test_metrics_carry_our_figures(server, bench):
    status, text = call(server[0], "/metrics")
    assert status == 200
    values = {}
    for line in text.splitlines():
        if line.startswith("recguide:"):
            name, value = line.rsplit(" ", 1)
            values.setdefault(name.split("{")[0], []).append((name, float(value)))
    labels = values["recguide:rounds_total"][0][0]
    assert 'method="recguide"' in labels and 'layout="flat"' in labels

    def of(name):
        return sum(value for _, value in values[f"recguide:{name}"])

    rounds, tokens = of("rounds_total"), of("round_tokens_total")
    assert rounds > TOTAL
    assert of("accepted_length") == pytest.approx(tokens / rounds)
    assert of("tau") == pytest.approx(2 * tokens / of("request_forwards_total"))
    assert of("round_blocks_total") == rounds
    assert 0 <= of("reuse") <= 1
