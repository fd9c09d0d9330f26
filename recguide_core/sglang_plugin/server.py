"""A SGLang server that runs as long as a `with` block: for bench, probes and tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from recguide_core.errors import RecGuideError
from recguide_core.sglang_plugin.launch import Command, ServerConfig, server_command

UP_WITHIN = 1200.0
"""Seconds for weights, pools and graphs."""
STOP_WITHIN = 30.0
SHOWN = 15
"""Lines of a dead server's log that an error shows at most."""


@contextmanager
def running_server(
    config: ServerConfig,
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    up_within: float = UP_WITHIN,
) -> Iterator[tuple[str, Command]]:
    """Start a server, wait until it answers, and stop it at the end of the block.

    Args:
        folder: where settings and log go, a temporary one by default.
        env: variables on top of the command's.

    Yields:
        its address, and the command that started it.

    Raises:
        RecGuideError: it ended or did not answer in time; shows the end of its log.
    """
    with _started(config, folder, env) as (process, command, log):
        address = f"http://{config.host}:{config.port}"

        def up() -> bool:
            return _answers(address)

        _wait(process, up, log, up_within)
        yield address, command


def wait_for_file(
    config: ServerConfig,
    wanted: Path,
    *,
    env: Mapping[str, str] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Start a server, wait until it has written a file, and stop it.

    Args:
        tick: called while nothing is there yet.

    Raises:
        RecGuideError: it ended before; shows the end of its log.
    """
    with _started(config, wanted.parent, env) as (process, _, log):

        def written() -> bool:
            tick()
            return wanted.is_file()

        _wait(process, written, log, float("inf"))


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _started(
    config: ServerConfig, folder: Path | None, env: Mapping[str, str] | None
) -> Iterator[tuple[subprocess.Popen[bytes], Command, Path]]:
    """The process, its command and its log; ended with the block."""
    with tempfile.TemporaryDirectory(prefix="recguide-") as spare:
        home = folder or Path(spare)
        command = server_command(config, home / "sglang.json")
        log = home / "server.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command.argv,
                env={**os.environ, **command.env, **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            yield process, command, log
        finally:
            _stop(process)


def _wait(
    process: subprocess.Popen[bytes], done: Callable[[], bool], log: Path, within: float
) -> None:
    began = time.monotonic()
    while time.monotonic() - began < within:
        if done():
            return
        if process.poll() is not None:
            raise RecGuideError(
                f"SGLang ended with code {process.returncode}: {_tail(log)}",
                _remedy(log),
            )
        time.sleep(0.5)
    raise RecGuideError(
        f"SGLang did not answer within {within:.0f} s: {_tail(log)}",
        "Start it in the foreground with `recguide serve` to see how far it comes.",
    )


def _remedy(log: Path) -> str:
    if "common_ops" in log.read_text(encoding="utf-8", errors="replace"):
        return (
            "SGLang's kernels need CUDA; on a CPU two operators are stood in for by "
            "PYTHONPATH=tests/sglang/shims (a checkout of RecGuide has them)."
        )
    return "Start it in the foreground with `recguide serve --engine sglang` to see its log."


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    wanted = [line for line in lines if "Error" in line or "error" in line] or lines
    return " | ".join(wanted[-SHOWN:]) or "no output"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole process group: SGLang starts a scheduler and a detokenizer."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=STOP_WITHIN)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        else:
            return
