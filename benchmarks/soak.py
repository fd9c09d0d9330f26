"""Minutes of mixed traffic against a real server, with an account of every request.

Clients send prompts and budgets of mixed lengths, whole and streamed, by every method; some leave
before the end, some send nonsense, and now and then a burst comes at once. Every request ends as
answered, refused, left (by the client) or lost; lost must be 0. A share of the answers is asked
again with plain decoding and compared token by token. At the end all slots and KV pages must be
back, and the report says how far memory grew and what the slowest answer took.

    python benchmarks/soak.py --minutes 10 --out runs/soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from soak_traffic import MODEL, PATH, Account, bursts, one_client

NEAR_TIE = 1e-3
"""Log-probabilities this close may be ranked differently by forwards of other widths."""
SETTLE_SECONDS = 30
ANSWER_SECONDS = 660.0
"""Longer than the server's own limit: a slow machine loses nothing by the client's haste."""


class Server:
    """`recguide serve` in a process of its own."""

    def __init__(self, log: Path | None) -> None:
        options = [
            *("serve", "--model", MODEL, "--port", "0", "--threads", "1", "--max-requests", "8"),
            *("--kv-tokens", "768", "--max-queue", "64"),
        ]
        program = "from recguide_cli.app import main; main()"
        self._log = log.open("w", encoding="utf-8") if log is not None else None
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *options], stderr=subprocess.PIPE, text=True
        )
        self.url = self._address()

    def _address(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = re.search(r"serves \S+ at (http://\S+)", line)
            if found:
                self._drain()
                return found.group(1)
        raise SystemExit("The server did not start; run `recguide serve` to see why.")

    def _drain(self) -> None:
        def read() -> None:
            assert self.process.stderr is not None
            for line in self.process.stderr:
                if self._log is not None:
                    self._log.write(line)

        threading.Thread(target=read, daemon=True).start()

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found.group(1)) / 1024 if found else float("nan")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        if self._log is not None:
            self._log.close()
        return code


async def compare_with_plain(client: httpx.AsyncClient, account: Account) -> None:
    """Ask the chosen requests again without speculation; every token must be the same."""
    for body, tokens in account.to_check:
        again = {**body, "stream": False, "logprobs": 2, "speculation": {"enabled": False}}
        choice = (await client.post(PATH, json=again)).json()["choices"][0]
        plain = choice["logprobs"]["tokens"]
        if plain == tokens:
            account.checks["equal"] += 1
            continue
        pairs = zip(plain, tokens, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(tokens)))
        best = sorted(choice["logprobs"]["top_logprobs"][at].values()) if at < len(plain) else []
        tie = body["temperature"] == 0 and len(best) == 2 and best[1] - best[0] < NEAR_TIE
        account.checks["near-tie" if tie else "different"] += 1
        if not tie:
            account.different.append({"at": at, "body": body, "plain": plain, "got": tokens})


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    """Slots and pages in use, once the server is quiet."""
    names = ("running", "waiting", "active_answers", "kv_free_tokens", "kv_tokens")
    values: dict[str, float] = {}
    for _ in range(SETTLE_SECONDS * 10):
        text = (await client.get("/metrics")).text
        found = dict(re.findall(r"^recguide_(\w+) (\S+)$", text, re.MULTILINE))
        values = {name: float(found[name]) for name in names}
        if not values["active_answers"] and not values["running"]:
            break
        await asyncio.sleep(0.1)
    return values


async def soak(arguments: argparse.Namespace, server: Server) -> dict[str, Any]:
    account = Account()
    limits = httpx.Limits(max_connections=arguments.clients + 100)
    async with httpx.AsyncClient(
        base_url=server.url, timeout=ANSWER_SECONDS, limits=limits
    ) as client:
        methods = (await client.get("/server_info")).json()["methods"]
        start = await gauges(client)
        # Buffers grow to their working size first; what grows after that is a leak.
        await rush(client, account, arguments, methods, min(10.0, 10 * arguments.minutes), 2)
        memory = [server.memory()]
        for half in range(2):
            await rush(client, account, arguments, methods, 30 * arguments.minutes, half)
            memory.append(server.memory())
        await compare_with_plain(client, account)
        finish = await gauges(client)
        text = (await client.get("/metrics")).text
        preempted = re.search(r"^recguide_preemptions_total (\S+)$", text, re.MULTILINE)
    return {
        "schema": "recguide.soak/1",
        "minutes": arguments.minutes,
        "clients": arguments.clients,
        "methods": methods,
        "sent": account.sent,
        "outcomes": dict(account.outcomes),
        "unaccounted": account.sent - sum(account.outcomes.values()),
        "lost": account.outcomes["lost"],
        "lost_because": account.lost[:20],
        "tokens": account.tokens,
        "slowest_seconds": round(account.slowest, 3),
        "checked": dict(account.checks),
        "different": account.different[:3],
        "gauges_at_start": start,
        "gauges_at_end": finish,
        "preemptions": float(preempted.group(1)) if preempted else None,
        "memory_mib": {
            name: round(value, 1)
            for name, value in zip(("after_warm_up", "half_way", "at_end"), memory, strict=True)
        },
        "server_exit": None,
    }


async def rush(
    client: httpx.AsyncClient, account: Account, arguments: argparse.Namespace,
    methods: list[str], seconds: float, part: int,
) -> None:  # fmt: skip
    end = time.monotonic() + seconds
    share, seed = arguments.check_share, 10 * arguments.seed + part
    await asyncio.gather(
        bursts(client, account, seed, end, methods, share),
        *(
            one_client(client, account, i, seed, end, methods, share)
            for i in range(arguments.clients)
        ),
    )


def verdict(report: dict[str, Any], most_growth: float) -> list[str]:
    """What is wrong; empty when the soak passes."""
    wrong = []
    if report["lost"] or report["unaccounted"]:
        wrong.append(f"{report['lost']} requests lost, {report['unaccounted']} unaccounted for")
    if report["gauges_at_start"] != report["gauges_at_end"]:
        wrong.append("slots or pages did not come back")
    if report["checked"].get("different"):
        wrong.append(f"{report['checked']['different']} answers differ from plain decoding")
    if not report["checked"].get("equal"):
        wrong.append("no answer was compared with plain decoding")
    growth = report["memory_mib"]["at_end"] - report["memory_mib"]["half_way"]
    if growth > most_growth:
        wrong.append(
            f"memory grew by {growth:.0f} MiB in the second half, more than {most_growth:.0f}"
        )
    if report["server_exit"] != 0:
        wrong.append(f"the server left with code {report['server_exit']}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-share", type=float, default=0.05)
    parser.add_argument("--max-growth-mib", type=float, default=32.0)
    parser.add_argument("--out", type=Path, help="write the report here")
    parser.add_argument("--log", type=Path, help="write the server's log here")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    server = Server(arguments.log)
    try:
        report = asyncio.run(soak(arguments, server))
    finally:
        code = server.stop()
    report["server_exit"] = code
    wrong = report["wrong"] = verdict(report, arguments.max_growth_mib)
    text = json.dumps(report, indent=1)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    if wrong:
        raise SystemExit("soak failed: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
