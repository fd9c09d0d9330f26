"""SGLang's native route as a bench target, against a scripted server; and what a run refuses."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.load import Job, Sending, closed_loop
from recguide_core.bench.remote import parse_address
from recguide_core.bench.served_policy import blocks_of, by_load
from recguide_core.bench.sglang_site import check_options
from recguide_core.bench.sglang_target import SglangTarget, flush
from recguide_core.datasets import Prompt
from recguide_core.errors import DataError, UsageError

ROUNDS = [None, [4, 3, 1, 2], None, None, [4, 4, 2, 1], None]
"""Beside six tokens: the prompt's, a round of three after two forwards, a reused one of four
whose last two tokens are cut off.
"""


class Scripted(BaseHTTPRequestHandler):
    """Six tokens in two growing parts."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        pass

    def do_GET(self):
        counted = self.server.counted
        text = f'recguide:steps_total{{method="ar"}} {counted}\n'
        self._send(200, text + f"recguide:query_tokens_total {4 * counted}\n")

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or "{}")
        if self.path == "/flush_cache":
            self.server.busy -= 1
            return self._send(400 if self.server.busy >= 0 else 200, "")
        self.server.bodies.append(body)
        if self.server.mode == "refuses":
            return self._send(400, '{"error": "too long"}')
        self.server.counted += 3
        self.send_response(200)
        self.end_headers()
        if self.server.mode == "fault":
            return self._part({"error": {"message": "not finite"}})
        self._part(self._answer(2, None))
        if self.server.mode == "cut":
            return None
        ends = {"type": "abort", "message": "gone"} if self.server.mode == "abort" else None
        self._part(self._answer(6, ends or {"type": "length", "length": 6}))
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _answer(self, count, reason):
        meta = {"finish_reason": reason}
        if reason or self.server.mode != "late":
            meta["recguide"] = ROUNDS[:count]
        return {"output_ids": list(range(10, 10 + count)), "meta_info": meta}

    def _part(self, part):
        self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())

    def _send(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    made.mode, made.bodies, made.counted, made.busy = "well", [], 0, 0
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def address_of(server):
    return parse_address(f"http://127.0.0.1:{server.server_port}", 10.0, None)


def measure(server, cell, count=2):
    target = SglangTarget(address_of(server), cell)
    target.open_window()
    jobs = [
        Job(Prompt(f"p{i}", (("user", "x"),), "demo"), np.array([1, 2, 3]), 6) for i in range(count)
    ]
    rows = closed_loop(target, jobs, cell.concurrency, Sending(cell.key, lambda row: None))
    return rows, target.window_record()


@pytest.mark.parametrize("mode", ["well", "late"])
def test_tokens_rounds_and_counters_of_an_answer(server, mode):
    server.mode = mode
    rows, counted = measure(server, Cell("overlap", 4, 2))
    for row in rows:
        assert row.tokens == [10, 11, 12, 13, 14, 15]
        assert (row.rounds, row.forwards, row.reused, row.round_tokens) == (2, 3, 1, 5)
        assert row.round_block == [4, 4] and row.round_source == [1, 2]
        assert row.round_accepted == [3, 4]
        assert sum(row.chunk_tokens) == 6 and row.chunks_counted
        assert row.finish == "length" and row.prompt == [1, 2, 3]
    assert counted["steps"] == 6 and counted["query_tokens_per_forward"] == 4.0
    params = server.bodies[0]["sampling_params"]
    assert params["custom_params"] == {"method": "overlap", "block_size": 4, "rounds": True}
    assert params["temperature"] == 0 and server.bodies[0]["input_ids"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("refuses", "too long"),
        ("fault", "not finite"),
        ("cut", "without a finish reason"),
        ("abort", "gone"),
    ],
)
def test_a_failure_is_a_row_with_its_reason(server, mode, words):
    server.mode = mode
    rows, _ = measure(server, Cell("ar", None, 1), count=1)
    assert rows[0].finish == "error" and words in rows[0].error


def test_a_busy_server_is_asked_again_until_its_cache_is_empty(server):
    server.busy = 2
    flush(address_of(server))
    assert server.busy == -1
    gone = parse_address("http://127.0.0.1:9", 1.0, None)
    with pytest.raises(DataError, match="prefix cache"):
        flush(gone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clock": "b200/nld-8b"}, "--clock"),
        ({"attention_backend": "torch"}, "--attention-backend"),
        ({"base_url": "http://127.0.0.1:1"}, "--base-url"),
        ({"methods": ("ar", "dflash")}, "dflash"),
    ],
)
def test_what_a_server_cannot_do_is_refused(options, words):
    with pytest.raises(UsageError, match=words) as caught:
        check_options(BenchConfig(engine="sglang", **options))
    assert caught.value.remedy


def test_baselines_of_a_served_policy_are_the_searchs():
    measured = [
        {"best": "linear/16", "recipe": "linear/32"},
        {"best": "ar", "recipe": "linear/16"},
    ]
    assert blocks_of(measured) == (16, 32)
    rows = [
        {"method": m, "block_size": b, "concurrency": 1, "tps": t, "tau": 2.0, "lossless": "exact",
         "failed": 0}
        for m, b, t in (("ar", None, 10.0), ("linear", 16, 40.0), ("recguide", None, 50.0))
    ]  # fmt: skip
    found = by_load([*rows, {**rows[0], "concurrency": 8}], 1)
    assert found["best"] == "linear/16"
    assert found["over_best"] == pytest.approx(0.25)
    assert set(found["methods"]) == {"ar", "linear/16", "recguide"}
