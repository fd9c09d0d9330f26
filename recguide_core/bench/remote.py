"""A server that speaks the OpenAI API as a target: streamed chat answers, a thread a request.

Token counts are the server's (`usage`); where it gives none the chunks are counted and the row
says so. Figures of speculation are taken where the server offers them: RecGuide's `speculation`
in usage, vLLM's `metrics` of an answer. A failure is a row with its type and text.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from recguide_core.bench.load import Job
from recguide_core.errors import DataError, UsageError
from recguide_core.records import Finish, Finished, Request

Event = TypeVar("Event")
CHAT = "chat/completions"
"""The API's streamed route."""
PATIENCE_S = 0.002
"""Longest wait of a step without news, so that arrivals are not held up."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers.

    Attributes:
        url: as given, for messages; `root`: path before `/chat/completions`, usually `/v1`.
    """

    url: str
    scheme: str
    host: str
    root: str
    timeout_s: float = 300.0
    api_key: str | None = None

    def connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, timeout=self.timeout_s)

    @property
    def headers(self) -> dict[str, str]:
        found = {"Content-Type": "application/json"}
        if self.api_key:
            found["Authorization"] = f"Bearer {self.api_key}"
        return found

    def get(self, path: str) -> str:
        """Body of a GET; DataError when nobody answers or the answer is none."""
        try:
            connection = self.connect()
            connection.request("GET", path, headers=self.headers)
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise DataError(
                f"No server answers at {self.url}: {error}.", "Start it, or check --base-url."
            ) from error
        if answer.status != 200:
            raise DataError(f"{self.url}{path} answers {answer.status}.", _remedy(answer.status))
        return body


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "Pass its key: --api-key, or RECGUIDE_API_KEY."
    return "Check --base-url; it is the part before /chat/completions."


def parse_address(url: str, timeout_s: float, api_key: str | None) -> Address:
    """An address from `http://host:port` or `http://host:port/v1`.

    Raises:
        UsageError: no such URL, or a timeout that is not above 0.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--base-url is '{url}'.", "Write it like: http://127.0.0.1:8000")
    if not timeout_s > 0:
        raise UsageError(f"--timeout is {timeout_s:g}.", "Give seconds above 0.")
    root = parts.path.rstrip("/") or "/v1"
    return Address(url, parts.scheme, parts.netloc, root, timeout_s, api_key)


@dataclass(slots=True)
class RemoteEvent:
    """A chunk of an answer, or its end; see load.TokenEvent.

    `tokens` has one entry a chunk: how many tokens it brings is not told. `usage` comes with the
    end: the server's counts, empty where it gives none.
    """

    key: str
    tokens: list[int]
    text: str = ""
    finished: Finished | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    block: int = 0
    accepted: int = 0
    source: int = 0


class RemoteTarget:
    """Sends every request in a thread of its own and hands on what comes back.

    Args:
        extra: further fields of the request's body (method and block size of our own server).
    """

    clock = "wall"

    def __init__(self, address: Address, model: str, extra: dict[str, Any]) -> None:
        self._address, self._model, self._extra = address, model, extra
        self._news: queue.Queue[RemoteEvent] = queue.Queue()

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.perf_counter()))

    def submit(self, request: Request, job: Job) -> None:
        messages = [{"role": role, "content": text} for role, text in job.prompt.messages]
        body = request_body(self._model, messages, request.max_tokens) | self._extra
        if request.ignore_eos:
            body["ignore_eos"] = True
        threading.Thread(target=self._ask, args=(request.key, body), daemon=True).start()

    def step(self) -> Iterable[RemoteEvent]:
        return arrived(self._news)

    def _ask(self, key: str, body: dict[str, Any]) -> None:
        finish, error = Finish.ERROR, None
        usage: dict[str, Any] = {}
        try:
            for part in stream(self._address, CHAT, body):
                usage |= usage_of(part)
                text, ending = _choice(part)
                finish = ending or finish
                if text:
                    self._news.put(RemoteEvent(key, [0], text=text))
            if finish is Finish.ERROR:
                error = "the stream ended without a finish reason"
        except TimeoutError:
            finish, error = (
                Finish.ERROR,
                f"no answer within --timeout {self._address.timeout_s:g} s",
            )
        except (OSError, http.client.HTTPException, ValueError) as fault:
            finish, error = Finish.ERROR, f"{type(fault).__name__}: {fault}"
        self._news.put(RemoteEvent(key, [], "", _finished(key, finish, usage, error), usage))


def request_body(
    model: str, messages: Sequence[Mapping[str, str]], max_tokens: int
) -> dict[str, Any]:
    """Body of a greedy, streamed chat request that asks for the server's counts."""
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def arrived(news: queue.Queue[Event]) -> list[Event]:
    """Everything that has arrived, after a wait of at most `PATIENCE_S` for the first."""
    try:
        found = [news.get(timeout=PATIENCE_S)]
    except queue.Empty:
        return []
    while not news.empty():
        found.append(news.get_nowait())
    return found


def stream(address: Address, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON parts of a streamed answer; ValueError when the server refuses.

    Args:
        path: below the API's root when relative, as it is when it begins with a slash.
    """
    connection = address.connect()
    try:
        where = path if path.startswith("/") else f"{address.root}/{path}"
        connection.request("POST", where, json.dumps(body), address.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            text = answer.read(2000).decode(errors="replace").strip()
            raise ValueError(f"HTTP {answer.status}: {text}")
        for line in answer:
            data = line.decode().strip().removeprefix("data:").strip()
            if data == "[DONE]":
                return
            if data.startswith("{"):
                yield json.loads(data)
    finally:
        connection.close()


def _choice(part: dict[str, Any]) -> tuple[str, Finish | None]:
    """Text of a part, and how the answer ended if this part says so."""
    if "error" in part:
        raise ValueError(str(part["error"]))
    choices = part.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    text = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
    reason = choices[0].get("finish_reason")
    if reason is None:
        return text, None
    return text, Finish.LENGTH if reason == "length" else Finish.STOP


def usage_of(part: dict[str, Any]) -> dict[str, Any]:
    """Counts of a part in one spelling: completion_tokens, prompt_tokens, rounds, ..."""
    usage = dict(part.get("usage") or {})
    usage |= usage.pop("speculation", None) or {}
    vllm = (part.get("metrics") or {}).get("speculative_decoding")
    if vllm:
        steps, drafted = vllm["num_spec_steps"], vllm["num_accepted_draft_tokens"]
        usage |= {"rounds": steps, "round_tokens": steps + drafted}
    return usage


def _finished(key: str, finish: Finish, usage: dict[str, Any], error: str | None) -> Finished:
    def count(name: str) -> int:
        return int(usage.get(name) or 0)

    return Finished(
        key=key,
        tokens=np.empty(0, np.int64),
        origins=np.empty(0, np.int64),
        finish=finish,
        rounds=count("rounds"),
        forwards=count("forwards"),
        reused=count("branch_hits"),
        round_tokens=count("round_tokens"),
        error=error,
    )
