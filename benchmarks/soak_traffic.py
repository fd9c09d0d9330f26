"""The traffic of a soak: valid requests, clients that leave, nonsense, bursts; their account."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

MODEL = "nld-tiny"
PATH = "/v1/completions"
LEAST_CHECKED = 5
PEOPLE = ("Gina", "Tom", "Kevin", "Lily", "Ben", "Chloe")
THINGS = ("eggs", "cookies", "books", "candles", "pens")
NONSENSE: tuple[tuple[bytes, set[int]], ...] = (
    (b"", {400}),
    (b"{", {400}),
    (b"\xff\xfe", {400}),
    (b"[" * 400, {400}),
    (b'{"model": "nld-tiny"}', {400}),
    (b'{"model": "other", "prompt": "x"}', {404}),
    (b'{"model": "nld-tiny", "prompt": "x", "max_tokens": -1}', {400}),
    (b'{"model": "nld-tiny", "prompt": "x", "temperature": NaN}', {400}),
    (b'{"model": "nld-tiny", "prompt": "x", "suffix": "y"}', {400}),
    (b'{"model": "nld-tiny", "prompt": [99999]}', {400}),
    (b'{"model": "nld-tiny", "prompt": "' + b"x y " * 3000 + b'"}', {400}),
)


@dataclass
class Account:
    """What became of every request."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    checks: Counter[str] = field(default_factory=Counter)
    different: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0
    tokens: int = 0
    to_check: list[tuple[dict[str, Any], list[str]]] = field(default_factory=list)

    def lose(self, why: str) -> None:
        self.outcomes["lost"] += 1
        self.lost.append(why[:300])


def random_body(rng: random.Random, methods: list[str]) -> dict[str, Any]:
    """A valid request of some size and kind."""
    lines = [
        f"{rng.choice(PEOPLE)} has {rng.randint(2, 60)} {rng.choice(THINGS)}."
        for _ in range(rng.choice((1, 1, 2, 5, 12)))
    ]
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": f"<bos><|user|>{' '.join(lines)} How many?<|assistant|>",
        "max_tokens": rng.choice((1, 2, 8, 24, 24, 64, 160)),
        "temperature": rng.choice((0, 0, 0.7)),
        "seed": rng.randint(0, 1000),
        "stream": rng.random() < 0.5,
        "logprobs": 0,
        "speculation": {"method": rng.choice(methods)},
    }
    if body["speculation"]["method"] == "tidar":
        # Its forwards grow with the square of the block.
        body["speculation"]["block_size"] = 4
    if rng.random() < 0.2:
        body["stop"] = ["Step 2", "\n\n"]
    if rng.random() < 0.2:
        body["ignore_eos"] = True
    return body


async def read_answer(response: httpx.Response, stream: bool) -> tuple[list[str], int]:
    """Spelled tokens and the finish count of an answer; raises ValueError when it is not whole."""
    if not stream:
        choice = json.loads(await response.aread())["choices"][0]
        return choice["logprobs"]["tokens"], 1
    tokens: list[str] = []
    ends = 0
    last = ""
    async for line in response.aiter_lines():
        if not line:
            continue
        last = line
        if line == "data: [DONE]":
            break
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise ValueError(f"an error in the stream: {event['error']['message']}")
        for choice in event["choices"]:
            tokens += (choice["logprobs"] or {}).get("tokens", [])
            ends += choice["finish_reason"] is not None
    if last != "data: [DONE]":
        raise ValueError("the stream ended early")
    return tokens, ends


async def one_valid(
    client: httpx.AsyncClient, account: Account, body: dict[str, Any], check: bool
) -> None:
    began = time.perf_counter()
    account.sent += 1
    try:
        async with client.stream("POST", PATH, json=body) as response:
            if response.status_code in (429, 503):
                await response.aread()
                kept = int(response.headers.get("retry-after", "0")) >= 1
                account.outcomes["refused: full"] += 1
                if not kept:
                    account.lose("a refusal without Retry-After")
                return
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                account.lose(f"{response.status_code}: {text}")
                return
            tokens, ends = await read_answer(response, body["stream"])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        account.lose(f"{type(error).__name__}: {error}")
        return
    if ends != 1 or not 1 <= len(tokens) <= body["max_tokens"]:
        account.lose(f"{ends} ends and {len(tokens)} of {body['max_tokens']} tokens")
        return
    account.outcomes["answered"] += 1
    account.tokens += len(tokens)
    account.slowest = max(account.slowest, time.perf_counter() - began)
    if check or len(account.to_check) < LEAST_CHECKED:
        account.to_check.append((body, tokens))


async def one_that_leaves(
    client: httpx.AsyncClient, account: Account, body: dict[str, Any], seconds: float
) -> None:
    account.sent += 1
    task = asyncio.create_task(client.post(PATH, json={**body, "max_tokens": 400}))
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
    await asyncio.wait({task})
    account.outcomes["left by the client"] += 1


async def one_bad(client: httpx.AsyncClient, account: Account, rng: random.Random) -> None:
    account.sent += 1
    body, expected = rng.choice(NONSENSE)
    try:
        response = await client.post(
            PATH, content=body, headers={"content-type": "application/json"}
        )
    except httpx.HTTPError as error:
        account.lose(f"nonsense: {type(error).__name__}: {error}")
        return
    standard = response.status_code in expected and set(response.json()) == {"error"}
    if standard:
        account.outcomes["refused: bad"] += 1
    else:
        account.lose(f"nonsense {body[:40]!r} got {response.status_code}")


async def one_client(
    client: httpx.AsyncClient, account: Account, number: int, seed: int, end: float,
    methods: list[str], share: float,
) -> None:  # fmt: skip
    rng = random.Random(f"{seed}/{number}")
    while time.monotonic() < end:
        kind = rng.random()
        if kind < 0.12:
            await one_that_leaves(client, account, random_body(rng, methods), 0.4 * rng.random())
        elif kind < 0.27:
            await one_bad(client, account, rng)
        else:
            await one_valid(client, account, random_body(rng, methods), rng.random() < share)
        await asyncio.sleep(0.02 * rng.random())


async def bursts(
    client: httpx.AsyncClient, account: Account, seed: int, end: float, methods: list[str],
    share: float,
) -> None:  # fmt: skip
    rng = random.Random(f"{seed}/bursts")
    while time.monotonic() + 5 < end:
        await asyncio.sleep(min(15.0, max(0.0, end - time.monotonic())))
        bodies = [random_body(rng, methods) | {"max_tokens": 4} for _ in range(96)]
        await asyncio.gather(
            *(one_valid(client, account, body, rng.random() < share) for body in bodies)
        )
