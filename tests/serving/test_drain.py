"""The command itself: it starts, logs, and leaves only when its answers have ended."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

MODEL = "nld-tiny"
PROGRAM = "from recguide_cli.app import main; main()"


class Command:
    """`recguide serve` as a user runs it."""

    def __init__(self, *options):
        arguments = ["serve", "--port", "0", "--threads", "1", "--method", "linear", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.lines = queue.Queue()
        self.seen = []
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.line("RecGuide serves").rsplit(" ", 1)[1].strip()

    def _read(self):
        for line in self.process.stderr:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, words, seconds=60):
        """The next line of the log that contains `words`."""
        end = time.monotonic() + seconds
        while True:
            line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            assert line is not None, f"ended before '{words}': {self.seen}"
            self.seen.append(line)
            if words in line:
                return line

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture
def command():
    started = []

    def start(*options):
        started.append(Command(*options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ask(tokens, **changes):
    return {
        "model": MODEL, "prompt": "<bos><|user|>Hello<|assistant|>", "max_tokens": tokens,
        "temperature": 0, "ignore_eos": True, **changes,
    }  # fmt: skip


def test_sigterm_lets_running_answers_end_and_turns_others_away(command):
    server = command()
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=ask(200, stream=True), timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        server.signal()
        wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        late = httpx.post(f"{server.url}/v1/completions", json=ask(2))
        assert late.status_code == 503
        assert late.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in late.headers
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert '"finish_reason":"length"' in "".join(rest)
    assert server.process.wait(20) == 0
    record = json.loads(server.line('"completion_tokens"'))
    assert record["completion_tokens"] == 200
    assert record["path"] == "/v1/completions"
    assert record["finish"] == ["length"]
    assert record["tau"] >= 1


def test_draining_ends_after_its_time(command):
    server = command("--drain-timeout", "0.2")
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=ask(1900, stream=True), timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        server.signal(signal.SIGINT)
        assert server.process.wait(20) == 0


def test_an_occupied_port_is_a_plain_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        second = subprocess.run(
            [sys.executable, "-c", PROGRAM, "serve", "--engine", "embedded", "--port", port],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert second.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    "options",
    [("--port", "70000"), ("--method", "magic"), ("--max-queue", "-1"), ("--api-key", ""),
     ("--temperature", "3"), ("--method", "recguide", "--policy", "missing.json")],
)  # fmt: skip
def test_wrong_options_are_refused_before_anything_starts(options):
    from typer.testing import CliRunner

    from recguide_cli.app import app

    result = CliRunner().invoke(app, ["serve", *options])
    assert result.exit_code in (1, 2)
    assert "Fix:" in result.stderr


def wait_for(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.02)
