"""Loads of `recguide bench` beyond a number in flight: traces, conversations, the cool-down."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recguide_core.bench.store import read_run

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"
TRACE = TRACES / "valid" / "mooncake.jsonl"
CLOCK = ("--clock", "b200/nld-8b")
ONE = ("--methods", "linear", "--concurrency", 4, "--warmup", 0)
CHAT = (
    '{"turns": ["Name three trees.", "Now in Greek.", "Which is tallest?"]}\n'
    '{"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi."},'
    ' {"role": "assistant", "content": "Unused."}, {"role": "user", "content": "Go on."}]}\n'
    '{"prompt": "Count to four."}\n'
)


def record_of(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def measured(folder):
    return [row for row in read_run(folder)[1] if row.measured]


def test_a_trace_is_replayed_with_its_lengths_and_moments(recguide, tmp_path):
    args = (*ONE, *CLOCK, "--replay", TRACE, "--ignore-eos", "--speed", "1,3", "--out", "run")
    result = recguide("bench", *args, "--json")
    record = record_of(result)
    assert [row["speed"] for row in record["rows"]] == [1.0, 3.0]
    assert [row["lossless"] for row in record["rows"]] == ["exact"] * 2
    rows = measured(tmp_path / "run")
    plain, fast = rows[:4], rows[4:]
    assert [row.arrival_s for row in plain] == [0.0, 0.0, 0.75, 4.5]
    assert [row.arrival_s for row in fast] == pytest.approx([0.0, 0.0, 0.25, 1.5])
    for half in (plain, fast):
        assert [row.prompt_tokens for row in half] == [40, 600, 580, 12]
        assert [row.output_tokens for row in half] == [6, 4, 5, 3]
    assert plain[1].prompt[5:500] == plain[2].prompt[5:500]
    trace = record["run"]["trace"]
    assert (trace["unit"], trace["seconds"], trace["requests"]) == ("ms", 4.5, 4)
    assert "timestamps in ms" in result.stderr
    # Steps are timed while there is work; a faster replay has the same steps at most closer.
    slow, quick = (row["step_ms"] for row in record["rows"])
    assert slow == pytest.approx(quick, rel=0.3)
    assert slow * record["rows"][0]["steps"] < 1e3
    keys = [row.key for row in rows]
    assert keys[0] == "linear/16@4,x1#0"
    assert len(set(keys)) == 8


def test_a_trace_is_replayed_on_the_walls_clock(recguide, tmp_path):
    args = (*ONE, "--replay", TRACE, "--speed", 20, "--requests", 3, "--out", "run")
    assert record_of(recguide("bench", *args, "--json"))["rows"][0]["requests"] == 3
    assert [row.arrival_s for row in measured(tmp_path / "run")] == pytest.approx([0, 0, 0.0375])


def test_resuming_with_another_trace_is_refused(recguide, assert_refused, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(TRACE.read_text())
    args = ("bench", *ONE, *CLOCK, "--no-check", "--replay", "other.jsonl", "--out", "run")
    assert recguide(*args).exit_code == 0
    other.write_text(TRACE.read_text().replace("2750", "2751"))
    assert_refused(recguide(*args, "--resume"), 1, "other settings: prompts_hash")


@pytest.mark.parametrize(
    ("args", "code", "cause", "remedy"),
    [
        (
            ("--replay", TRACES / "broken/unsorted.jsonl"),
            1,
            "unsorted.jsonl:2: ",
            "--skip-bad-rows",
        ),
        (("--replay", "absent.jsonl"), 1, "absent.jsonl", "path"),
        (("--replay", TRACE, "--rate", 2), 2, "--rate and --replay are given", "one kind"),
        (("--replay", TRACE, "--speed", 0), 2, "--speed has 0", "above 0"),
        (("--replay", TRACE, "--time-unit", "hours"), 2, "'hours'", "ms"),
        (("--replay", TRACE, "--simulate"), 2, "not to a simulation", "--clock"),
        (("--cooldown", -1), 2, "--cooldown is -1", "at least 0"),
    ],
)
def test_honest_errors(recguide, assert_refused, args, code, cause, remedy):
    assert_refused(recguide("bench", *args), code, cause, remedy)


def test_a_trace_beyond_the_context(recguide, assert_refused, tmp_path):
    long = {"timestamp": 9000, "input_length": 900000, "output_length": 5}
    (tmp_path / "long.jsonl").write_text(TRACE.read_text() + json.dumps(long) + "\n")
    args = ("bench", *ONE, *CLOCK, "--no-check", "--replay", "long.jsonl")
    assert_refused(recguide(*args), 1, "long.jsonl:5: 900000 prompt", "--skip-bad-rows")
    result = recguide(*args, "--skip-bad-rows", "--json")
    assert record_of(result)["rows"][0]["requests"] == 4
    assert "left out long.jsonl:5" in result.stderr


def test_a_conversation_holds_the_models_own_answers(recguide, tmp_path):
    from recguide_core.model.registry import load_model

    (tmp_path / "chat.jsonl").write_text(CHAT)
    data = ("--data", "chat.jsonl", "--turns", "chat", "--requests", 3, "--max-tokens", 8)
    load = ("--methods", "ar,overlap", "--concurrency", 2, "--block-size", 8, *CLOCK)
    record = record_of(recguide("bench", *data, *load, "--out", "run", "--json"))
    assert [row["lossless"] for row in record["rows"]] == ["exact"] * 2
    assert [row["requests"] for row in record["rows"]] == [6, 6]
    assert [t["requests"] for t in record["rows"][0]["turns"]] == [3, 2, 1]
    assert record["run"]["data"]["turns"] == "chat"
    model = load_model("nld-tiny")
    rows = measured(tmp_path / "run")
    by_turn = {(row.cell, row.index, row.turn): row for row in rows}
    checked = 0
    for (cell, index, turn), row in by_turn.items():
        if turn == 0:
            continue
        before = by_turn[cell, index, turn - 1]
        text = model.tokenizer.decode(row.prompt, skip_special=False)
        said = model.tokenizer.decode(before.tokens)
        assert said and said in text
        assert "Unused." not in text
        assert len(row.prompt) > len(before.prompt)
        checked += 1
    assert checked == 2 * 3
    # The same conversation with both methods, since every answer is the same.
    halves = [[r.prompt for r in rows if r.cell.startswith(m)] for m in ("ar", "overlap")]
    assert halves[0] == halves[1]


def test_a_saved_conversation_is_checked_with_its_history(recguide, tmp_path, monkeypatch):
    from recguide_core.bench import target

    (tmp_path / "chat.jsonl").write_text(CHAT)
    data = ("--data", "chat.jsonl", "--turns", "chat", "--requests", 3, "--max-tokens", 8)
    load = ("--methods", "linear", "--concurrency", 2, "--warmup", 0, *CLOCK, "--no-check")
    assert recguide("bench", *data, *load, "--out", "run").exit_code == 0
    honest, replayed = target.Reference.outputs, []

    def listening(self, jobs):
        replayed.extend(job.tokens.tolist() for job in jobs)
        return honest(self, jobs)

    monkeypatch.setattr(target.Reference, "outputs", listening)
    counts = record_of(recguide("bench", "--check", "run", "--json"))["counts"]
    assert counts == {"exact": 6, "near-tie": 0, "different": 0}
    assert sorted(replayed) == sorted(row.prompt for row in measured(tmp_path / "run"))
    assert len(set(map(tuple, replayed))) == 6


def test_a_cooldown_is_marked_and_shown(recguide, tmp_path):
    args = ("--requests", 3, "--concurrency", 2, "--max-tokens", 12, "--cooldown", 3, "--warmup", 1)
    record = record_of(
        recguide(
            "bench", *args, "--methods", "ar", "--ignore-eos", *CLOCK, "--out", "run", "--json"
        )
    )
    row = record["rows"][0]
    assert row["warmup"]["requests"] == 1
    assert row["cooldown"]["requests"] >= 1
    assert (row["requests"], row["output_tokens"]) == (3, 36)
    rows = read_run(tmp_path / "run")[1]
    cool = [r for r in rows if r.cooldown]
    assert len(cool) == row["cooldown"]["requests"]
    assert {r.dataset for r in cool} == {"warmup"}
    closed = max(r.end_s for r in measured(tmp_path / "run"))
    assert all(r.arrival_s < closed for r in cool)
    left = max(closed, *(r.end_s for r in cool)) - closed
    assert row["cooldown"]["seconds"] == pytest.approx(left, abs=1e-9)
    assert record["rows"][0]["seconds"] == pytest.approx(closed)


class Echo(BaseHTTPRequestHandler):
    """Counts a token per four characters, three for the template; answers with a count."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._send(json.dumps({"data": [{"id": "echo"}]}) if "models" in self.path else "")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        size = 3 + sum(len(m["content"]) for m in body["messages"]) // 4
        answer = f"answer {len(body['messages'])}"
        usage = {"prompt_tokens": size, "completion_tokens": 2}
        parts = [
            {"choices": [{"delta": {"content": answer}, "finish_reason": None}]},
            {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage},
        ]
        self._send("".join(f"data: {json.dumps(p)}\n\n" for p in parts) + "data: [DONE]\n\n")

    def _send(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def echo():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.bodies = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", server
    server.shutdown()
    server.server_close()


def test_a_server_replays_a_trace_by_its_own_count(recguide, echo, tmp_path):
    url, server = echo
    args = ("--base-url", url, "--replay", TRACE, "--speed", 30, "--concurrency", 4, "--warmup", 0)
    result = recguide("bench", *args, "--out", "run", "--json")
    record = record_of(result)
    rows = measured(tmp_path / "run")
    assert [row.prompt_tokens for row in rows] == pytest.approx([40, 600, 580, 12], abs=2)
    assert [body["max_tokens"] for body in server.bodies[:2]] == [1, 1]
    assert sorted(body["max_tokens"] for body in server.bodies[2:]) == [3, 4, 5, 6]
    assert [row.arrival_s for row in rows] == pytest.approx([0, 0, 0.025, 0.15])
    assert record["run"]["trace"]["scale"]["characters"] == pytest.approx(4.0, rel=0.01)
    assert "of the trace's prompt tokens" in result.stderr


def test_a_servers_answers_become_history(recguide, echo, tmp_path):
    url, server = echo
    (tmp_path / "chat.jsonl").write_text(CHAT)
    data = ("--data", "chat.jsonl", "--turns", "chat", "--requests", 3, "--warmup", 0)
    recguide("bench", "--base-url", url, *data, "--concurrency", 1, "--out", "run")
    longest = max((body["messages"] for body in server.bodies), key=len)
    assert longest == [
        {"role": "user", "content": "Name three trees."},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "Now in Greek."},
        {"role": "assistant", "content": "answer 3"},
        {"role": "user", "content": "Which is tallest?"},
    ]
    assert [row.answer for row in measured(tmp_path / "run") if row.turn == 2] == ["answer 5"]
