"""A SGLang server that runs as long as a `with` block: for bench and tests."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
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
            address = f"http://{config.host}:{config.port}"
            _wait(process, address, log, up_within)
            yield address, command
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], address: str, log: Path, up_within: float) -> None:
    deadline = time.monotonic() + up_within
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RecGuideError(
                f"SGLang ended with code {process.returncode}: {_tail(log)}",
                f"Read {log}, or start it in the foreground with `recguide serve`.",
            )
        if _answers(address):
            return
        time.sleep(0.5)
    raise RecGuideError(
        f"SGLang did not answer within {up_within:.0f} s: {_tail(log)}",
        "Start it in the foreground with `recguide serve` to see how far it comes.",
    )


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
