"""`recguide bench --base-url`: a mock of what servers answer, and our own server for real."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recguide_core.bench.store import read_run

ROOT = Path(__file__).parents[2]
SMALL = ("--requests", 6, "--concurrency", 2, "--max-tokens", 16, "--warmup", 1)


class Mock(BaseHTTPRequestHandler):
    """Answers three chunks for nine tokens; `server.mode` says whose dialect it speaks."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        pass

    def do_GET(self):
        mode = self.server.mode
        if self.path == "/v1/models":
            models = [] if mode == "no models" else [{"id": "mock-model"}]
            return self._send(200, json.dumps({"data": models}))
        asked = self.server.asked
        if self.path == "/metrics" and mode == "vllm":
            return self._send(
                200,
                "# HELP text\n"
                f'vllm:spec_decode_num_drafts_total{{engine="0"}} {100 + 2 * asked}\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {50 + 7 * asked}\n',
            )
        if self.path == "/metrics" and mode == "sglang":
            return self._send(200, 'sglang:spec_accept_length{model_name="a b"} 3.25\n')
        return self._send(404, "")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.asked += 1
        mode = self.server.mode
        if mode == "busy" and self.server.asked % 3 == 0:
            return self._send(429, '{"error": "too many"}')
        if mode == "slow":
            time.sleep(1.5)
        self.send_response(200)
        self.end_headers()
        for text in ("a ", "b ", "c"):
            self._part({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        if mode == "cut":
            return None
        self._part({"choices": [{"delta": {}, "finish_reason": "length"}]})
        last = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}
        if mode == "ours":
            spec = {"rounds": 2, "forwards": 3, "round_tokens": 8, "branch_hits": 1}
            last["usage"]["speculation"] = {**spec, "method": "overlap"}
        if mode == "vllm":
            spec = {"num_spec_steps": 2, "num_accepted_draft_tokens": 6}
            last["metrics"] = {"speculative_decoding": spec}
        if mode != "no usage":
            self._part(last)
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _part(self, part):
        self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())

    def _send(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def mock():
    """Starts a server of one dialect; gives its URL and what it was asked."""
    started = []

    def start(mode):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Mock)
        server.mode, server.asked, server.bodies = mode, 0, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}", server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def bench(recguide, url, *args):
    result = recguide("bench", "--base-url", url, *SMALL, *args, "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    return record, record["rows"][0], result


def test_the_servers_counts_are_taken(recguide, mock, tmp_path):
    url, server = mock("plain")
    record, row, result = bench(recguide, url)
    assert row["method"] == "server"
    assert row["output_tokens"] == 6 * 9
    assert row["tpot_ms"] is not None
    assert (row["tau"], row["accepted_length"], row["lossless"]) == (None, None, None)
    # Three chunks for nine tokens: what each brought is not known, so nothing per token is said.
    assert row["distributions"]["itl_token_ms"]["count"] == 0
    assert row["distributions"]["itl_chunk_ms"]["count"] == 6 * 2
    assert record["run"]["server"]["model"] == "mock-model"
    assert "unchecked" in result.stderr
    body = server.bodies[-1]
    assert body["model"] == "mock-model"
    assert body["stream_options"] == {"include_usage": True}
    assert "speculation" not in body
    rows = [r for r in read_run(tmp_path / "run")[1] if not r.warmup]
    assert {r.prompt_tokens for r in rows} == {5}
    assert (tmp_path / "run" / "report.html").is_file()


def test_our_own_speculation_fields(recguide, mock):
    url, server = mock("ours")
    _, row, _ = bench(recguide, url, "--methods", "overlap", "--block-size", "8")
    assert row["accepted_length"] == 4.0
    assert row["tau"] == pytest.approx(2 * 8 / 3)
    assert row["reuse"] == 0.5
    assert server.bodies[-1]["speculation"] == {"method": "overlap", "block_size": 8}


def test_vllm_fields_of_an_answer_and_counters(recguide, mock):
    url, _ = mock("vllm")
    _, row, result = bench(recguide, url)
    assert row["accepted_length"] == 4.0
    assert row["tau"] is None
    assert row["server_metrics"] == {
        "accepted_length": pytest.approx(1 + 7 / 2),
        "source": "vllm:spec_decode_num_drafts_total",
    }
    assert "4.50" in result.stderr


def test_sglang_gauge(recguide, mock):
    _, row, _ = bench(recguide, mock("sglang")[0])
    assert row["server_metrics"] == {
        "accepted_length": 3.25,
        "source": "sglang:spec_accept_length",
    }


def test_without_usage_the_chunks_are_counted(recguide, mock):
    _, row, _ = bench(recguide, mock("no usage")[0])
    assert row["output_tokens"] == 6 * 3


def test_failures_are_counted_with_their_text(recguide, mock, tmp_path):
    _, row, result = bench(recguide, mock("busy")[0])
    assert 0 < row["failed"] < row["requests"]
    assert row["output_tokens"] == 9 * (6 - row["failed"])
    errors = [r.error for r in read_run(tmp_path / "run")[1] if r.error and not r.warmup]
    assert len(errors) == row["failed"]
    assert all("HTTP 429" in text and "too many" in text for text in errors)
    assert f"{row['failed']} requests failed" in result.stderr


@pytest.mark.parametrize(
    ("mode", "args", "error"),
    [
        ("slow", ("--timeout", "0.2"), "no answer within --timeout 0.2 s"),
        ("cut", (), "without a finish reason"),
    ],
)
def test_a_request_that_never_ends_is_a_failure(recguide, mock, tmp_path, mode, args, error):
    _, row, _ = bench(recguide, mock(mode)[0], *args)
    assert row["failed"] == 6
    assert row["tps"] is None
    assert {r.error for r in read_run(tmp_path / "run")[1] if not r.warmup} != {None}
    assert all(error in r.error for r in read_run(tmp_path / "run")[1] if not r.warmup)


def test_arrivals_at_a_rate(recguide, mock):
    _, row, _ = bench(recguide, mock("plain")[0], "--rate", "40", "--arrivals", "constant")
    assert row["rate"] == 40.0
    assert row["seconds"] >= 5 / 40


def test_the_key_is_sent_and_never_saved(recguide, mock, tmp_path):
    url, _ = mock("plain")
    bench(recguide, url, "--api-key", "very-secret")
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert b"very-secret" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("args", "code", "cause"),
    [
        (("--base-url", "localhost:8000"), 2, "--base-url is 'localhost:8000'"),
        (("--base-url", "http://127.0.0.1:9"), 1, "No server answers"),
        (("--base-url", "http://127.0.0.1:9", "--timeout", "0"), 2, "--timeout is 0"),
    ],
)
def test_honest_errors(recguide, assert_refused, args, code, cause):
    assert_refused(recguide("bench", *args), code, cause)


def test_a_server_without_models(recguide, assert_refused, mock):
    url, _ = mock("no models")
    assert_refused(recguide("bench", "--base-url", url), 1, "lists no model", "--model")


@pytest.fixture
def served(tmp_path):
    """`recguide serve` with the bundled model on a free port."""
    pytest.importorskip("uvicorn", reason="needs uvicorn (extra serve)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from recguide_cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_our_own_server(recguide, served, tmp_path):
    args = ("--methods", "ar,linear", "--block-size", "8", "--requests", 4, "--max-tokens", 16)
    result = recguide(
        "bench", "--base-url", served, *args, "--concurrency", 2, "--out", "run", "--json"
    )
    assert result.exit_code == 0, result.output
    plain, drafted = json.loads(result.stdout)["rows"]
    assert (plain["failed"], drafted["failed"]) == (0, 0)
    assert plain["tpf"] == 1.0
    assert drafted["accepted_length"] > 1.0
    assert drafted["tau"] == pytest.approx(drafted["accepted_length"])
    embedded = recguide("bench", *args, "--concurrency", 2, "--out", "mine", "--no-check", "--json")
    mine = json.loads(embedded.stdout)["rows"]
    # The same requests through HTTP and in process: the same tokens in as many rounds.
    for name in ("output_tokens", "rounds", "forwards", "accepted_length"):
        assert [plain[name], drafted[name]] == [row[name] for row in mine], name
