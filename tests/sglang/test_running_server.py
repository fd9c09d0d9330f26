"""The life of a server process, with a few lines of Python in SGLang's place."""

import socket
import sys
import time

import pytest

from recguide_core.errors import RecGuideError
from recguide_core.sglang_plugin import server
from recguide_core.sglang_plugin.launch import Command, ServerConfig

ANSWERS = """
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


@pytest.fixture
def start(monkeypatch, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]

    def call(code, **options):
        argv = [sys.executable, "-c", code, str(port)]
        monkeypatch.setattr(server, "server_command", lambda *a, **k: Command(argv, {}, []))
        config = ServerConfig("nld-tiny", port=port)
        return server.running_server(config, folder=tmp_path, **options)

    return call


def test_the_address_answers_inside_the_block_and_not_after(start):
    with start(ANSWERS) as (address, _):
        assert server._answers(address)
    assert not server._answers(address)


def test_a_server_that_dies_says_why(start):
    code = "raise SystemExit('Error: no such flag')"
    with pytest.raises(RecGuideError, match="no such flag"), start(code):
        pass


def test_a_server_that_never_answers_is_stopped(start):
    began = time.monotonic()
    with (
        pytest.raises(RecGuideError, match="did not answer"),
        start("import time; time.sleep(600)", up_within=1.0),
    ):
        pass
    assert time.monotonic() - began < 60


def test_a_fault_in_the_block_stops_the_server_too(start):
    with pytest.raises(ZeroDivisionError), start(ANSWERS) as (address, _):
        1 / 0  # noqa: B018
    assert not server._answers(address)


def test_a_kernel_library_without_cuda_is_named(start):
    code = "raise SystemExit('ImportError: no module named common_ops')"
    with pytest.raises(RecGuideError) as caught, start(code):
        pass
    assert "tests/sglang/shims" in caught.value.remedy


def test_a_server_is_stopped_once_its_file_is_there(monkeypatch, tmp_path):
    code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text('x'); time.sleep(600)"
    wanted = tmp_path / "result"
    argv = [sys.executable, "-c", code, str(wanted)]
    monkeypatch.setattr(server, "server_command", lambda *a, **k: Command(argv, {}, []))
    ticks = []
    began = time.monotonic()
    server.wait_for_file(ServerConfig("nld-tiny"), wanted, tick=lambda: ticks.append(1))
    assert wanted.read_text() == "x" and ticks
    assert time.monotonic() - began < 60
