"""Runs the commands that the documentation shows and writes what they said.

    .venv/bin/python scripts/transcripts.py [NAME ...]

Every scene below becomes `docs/transcripts/NAME.txt`, which the pages include. Commands run one
after another in one empty folder, so a later scene finds the runs and tables of an earlier one;
named scenes bring those along that they need. Where a virtual clock is charged, the numbers are a
function of code, tables and weights; elsewhere they are this machine's. Takes two minutes on a free
core.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "transcripts"
RUN = "from recguide_cli.app import main; main()"
PORT = 8000
LOAD = "--methods ar,linear,recguide --concurrency 1,8 --requests 8 --max-tokens 48"
TRACE = """{"timestamp": 0, "input_length": 48, "output_length": 24, "hash_ids": [0]}
{"timestamp": 400, "input_length": 620, "output_length": 16, "hash_ids": [1, 2]}
{"timestamp": 700, "input_length": 590, "output_length": 32, "hash_ids": [1, 3]}
"""
CHAT = '{"turns": ["Name three trees.", "Which of them is tallest?", "Why?"]}\n'
QUESTION = (
    "curl -sS --fail-with-body http://127.0.0.1:8000/v1/chat/completions "
    "-H 'Content-Type: application/json' -d '"
    '{"model": "nld-tiny", "messages": [{"role": "user", '
    '"content": "Gina has 14 eggs and gives 5 away. How many are left?"}], '
    '"temperature": 0, "max_tokens": 32}\''
)


@dataclass(frozen=True)
class Scene:
    """Commands whose output is one file.

    Attributes:
        play: gives the lines of the transcript when run in a folder; needs: scenes before it.
    """

    name: str
    play: Callable[[Path], Iterator[str]]
    needs: Sequence[str] = ()


def commands(*lines: str) -> Callable[[Path], Iterator[str]]:
    """Commands one after another, each with everything that it printed."""

    def play(folder: Path) -> Iterator[str]:
        for line in lines:
            yield f"$ {line}"
            yield run(line, folder)

    return play


def run(line: str, folder: Path) -> str:
    done = subprocess.run(
        program(line),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{line}\nended with {done.returncode}:\n{done.stdout}")
    return cleaned(done.stdout)


def program(line: str) -> list[str]:
    first, *rest = shlex.split(line)
    return [sys.executable, "-c", RUN, *rest] if first == "recguide" else [first, *rest]


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RECGUIDE_")}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb"}


def cleaned(text: str) -> str:
    """Without the checkout's place, trailing blanks and blank ends."""
    plain = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    return "\n".join(line.rstrip() for line in plain.strip("\n").splitlines())


def with_files(
    files: dict[str, str], then: Callable[[Path], Iterator[str]]
) -> Callable[[Path], Iterator[str]]:
    """Puts small input files into the folder first."""

    def play(folder: Path) -> Iterator[str]:
        for name, text in files.items():
            (folder / name).write_text(text)
        yield from then(folder)

    return play


def resumed(folder: Path) -> Iterator[str]:
    """A sweep that is killed behind its first cell, and goes on."""
    line = f"recguide bench {LOAD} --clock b200/nld-8b --out runs/long"
    yield f"$ {line}"
    process = subprocess.Popen(
        program(line), cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    done = folder / "runs" / "long" / "cells.jsonl"
    while process.poll() is None and not (done.exists() and done.read_bytes().count(b"\n")):
        time.sleep(0.02)
    if process.poll() is not None:
        raise SystemExit("The sweep ended before it could be stopped.")
    process.send_signal(signal.SIGKILL)
    process.wait()
    yield "Killed\n$ wc -l runs/long/cells.jsonl"
    yield run("wc -l runs/long/cells.jsonl", folder)
    yield from commands(f"{line} --resume")(folder)


def served(folder: Path) -> Iterator[str]:
    """A server, asked once and stopped."""
    line = "recguide serve"
    with (folder / "serve.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            program(line), cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until_ready(process)
            started = cleaned((folder / "serve.log").read_text(encoding="utf-8"))
            yield f"$ {line} &\n{started}\n$ {QUESTION}"
            yield run(QUESTION, folder)
        finally:
            process.terminate()
            process.wait(timeout=60)


def wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"The server ended; is port {PORT} free?")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("The server does not become ready.")


SCENES = (
    Scene("doctor", commands("recguide doctor --model nld-tiny")),
    Scene("bench", commands(f"recguide bench {LOAD} --clock b200/nld-8b --out runs/first")),
    Scene(
        "bench-wall",
        commands(
            "recguide bench --methods ar,linear --concurrency 1 --requests 8 --max-tokens 48 "
            "--threads 1 --out runs/here"
        ),
    ),
    Scene("bench-check", commands("recguide bench --check runs/first"), ("bench",)),
    Scene(
        "bench-bitwise",
        commands(
            "recguide bench --bitwise --methods ar,overlap --concurrency 2 --requests 3 "
            "--max-tokens 16 --out runs/bits"
        ),
    ),
    Scene(
        "bench-compare",
        commands(
            "recguide bench --methods linear --concurrency 1 --requests 8 --max-tokens 48 "
            "--clock b200/nld-14b --no-check --out runs/second",
            "recguide bench compare runs/first runs/second",
        ),
        ("bench",),
    ),
    Scene("bench-resume", resumed),
    Scene(
        "bench-replay",
        with_files(
            {"trace.jsonl": TRACE},
            commands(
                "cat trace.jsonl",
                "recguide bench --replay trace.jsonl --speed 1,4 --methods recguide "
                "--concurrency 8 --clock b200/nld-8b --out runs/replayed",
            ),
        ),
    ),
    Scene(
        "bench-chat",
        with_files(
            {"chat.jsonl": CHAT},
            commands(
                "cat chat.jsonl",
                "recguide bench --data chat.jsonl --turns chat --methods linear --concurrency 1 "
                "--requests 1 --max-tokens 24 --clock b200/nld-8b --out runs/chat",
            ),
        ),
    ),
    Scene(
        "profile",
        commands(
            "recguide profile --requests 1,8 --block-size 8,16 --context 128 --threads 1 "
            "--budget 15"
        ),
    ),
    Scene(
        "calibrate",
        commands("recguide calibrate --menu 1,4,8,16 --requests 16 --max-tokens 64 --threads 1"),
    ),
    Scene(
        "tune",
        commands(
            "recguide tune --menu 1,4,8,16 --requests 6 --max-tokens 48 --concurrency 1,8 "
            "--iterations 1 --threads 1"
        ),
        ("profile", "calibrate"),
    ),
    Scene("serve", served),
)


def wanted(names: Sequence[str]) -> list[Scene]:
    """The named scenes with those that they need, in the order of the script; all without names."""
    by_name = {scene.name: scene for scene in SCENES}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SystemExit(f"No scene named {unknown[0]}. Known: {', '.join(by_name)}.")
    chosen = set(names or by_name)
    for scene in reversed(SCENES):
        if scene.name in chosen:
            chosen.update(scene.needs)
    return [scene for scene in SCENES if scene.name in chosen]


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="recguide-transcripts-"))
    try:
        for scene in wanted(sys.argv[1:]):
            began = time.monotonic()
            text = "\n".join(scene.play(folder))
            (OUT / f"{scene.name}.txt").write_text(text + "\n", encoding="utf-8")
            print(f"{scene.name}: {time.monotonic() - began:.0f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
