"""SGLang's native route as a bench target: token ids in, token ids and rounds out.

The plugin tells the rounds of a request that asks for them: one entry a token in
`meta_info.recguide`, the round (block, accepted, source, forwards) at its first token.
"""

from __future__ import annotations

import http.client
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recguide_core.bench.config import Cell
from recguide_core.bench.load import Job
from recguide_core.bench.remote import Address, arrived, stream
from recguide_core.bench.server_site import scrape
from recguide_core.errors import DataError
from recguide_core.metrics import ratio
from recguide_core.records import Finish, Finished, Request, Source

FLUSHED_WITHIN_S = 30.0
_OWN_DRAFTS = (Source.NONE, Source.DRAFT, Source.DRAFTER)


@dataclass(slots=True)
class ServedEvent:
    """Tokens of one request that a chunk brought, or a further round of it; see load.TokenEvent."""

    key: str
    tokens: list[int]
    block: int = 0
    accepted: int = 0
    source: int = 0
    finished: Finished | None = None


class SglangTarget:
    """One cell's requests to a SGLang server with the plugin.

    Args:
        cell: its method and block are asked for request by request; at most its concurrency is
            sent at once.
    """

    clock = "wall"

    def __init__(self, address: Address, cell: Cell) -> None:
        self._address = address
        self._wish: dict[str, Any] = {"method": cell.method, "rounds": True}
        if cell.block_size is not None:
            self._wish["block_size"] = cell.block_size
        self._room = threading.Semaphore(cell.concurrency)
        self._news: queue.Queue[ServedEvent] = queue.Queue()
        self._before: dict[str, float] = {}
        self._opened = 0.0

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - time.perf_counter()))

    def submit(self, request: Request, job: Job) -> None:
        del job
        body = {
            "input_ids": [int(token) for token in request.prompt],
            "stream": True,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": request.max_tokens,
                "ignore_eos": request.ignore_eos,
                "custom_params": self._wish,
            },
        }
        threading.Thread(target=self._ask, args=(request.key, body), daemon=True).start()

    def step(self) -> Iterable[ServedEvent]:
        return arrived(self._news)

    def open_window(self) -> None:
        """Warm-up is over: no prompt of the window is cached, and counting begins."""
        flush(self._address)
        self._before = scrape(self._address)
        self._opened = self.now()

    def window_record(self) -> dict[str, Any]:
        """What the server counted since the window opened; a step is one packed forward."""
        seconds = self.now() - self._opened
        after = scrape(self._address)

        def more(name: str) -> float:
            key = f"recguide:{name}_total"
            return after.get(key, 0.0) - self._before.get(key, 0.0)

        steps = int(more("steps"))
        return {
            "steps": steps,
            "step_ms": None if not steps else 1e3 * seconds / steps,
            "plan_ms": None,
            "query_tokens_per_forward": ratio(more("query_tokens"), steps),
            "drafts": None,
            "floor": None,
        }

    def host_share(self, jobs: Sequence[Job]) -> float | None:
        del jobs
        return None

    def _ask(self, key: str, body: dict[str, Any]) -> None:
        reader = _Answer(key)
        with self._room:
            try:
                for part in stream(self._address, "/generate", body):
                    for event in reader.take(part):
                        self._news.put(event)
                if not reader.ended:
                    self._news.put(reader.failed("the stream ended without a finish reason"))
            except TimeoutError:
                text = f"no answer within {self._address.timeout_s:g} s"
                self._news.put(reader.failed(text))
            except (OSError, http.client.HTTPException, ValueError) as fault:
                self._news.put(reader.failed(f"{type(fault).__name__}: {fault}"))


class _Answer:
    """Turns the growing parts of one answer into events."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.tokens: list[int] = []
        self.noted: list[Any] = []
        self.told = 0
        """Places whose rounds have been handed on; rounds may be told later than their tokens."""
        self.ended = False

    def take(self, part: dict[str, Any]) -> Iterator[ServedEvent]:
        """Events of a part; ValueError when it reports a fault."""
        if "error" in part:
            raise ValueError(str(part["error"]))
        meta = part["meta_info"]
        seen = len(self.tokens)
        self.tokens = [int(token) for token in part["output_ids"]]
        self.noted = list(meta.get("recguide") or self.noted)
        events = [ServedEvent(self.key, self.tokens[seen:])]
        known = min(len(self.noted), len(self.tokens))
        for about in self.noted[self.told : known]:
            if about is not None:
                if events[-1].block:
                    events.append(ServedEvent(self.key, []))
                events[-1].block, events[-1].accepted, events[-1].source = about[:3]
        self.told = max(self.told, known)
        reason = meta.get("finish_reason")
        if reason is not None:
            events[-1].finished = self._finished(reason)
            self.ended = True
        yield from events

    def failed(self, why: str) -> ServedEvent:
        finished = self._record(Finish.ERROR, why)
        return ServedEvent(self.key, [], finished=finished)

    def _finished(self, reason: dict[str, Any]) -> Finished:
        kind = reason.get("type")
        if kind in ("stop", "length"):
            return self._record(Finish.STOP if kind == "stop" else Finish.LENGTH, None)
        return self._record(Finish.ERROR, str(reason.get("message") or kind))

    def _record(self, finish: Finish, error: str | None) -> Finished:
        known = self.noted[: len(self.tokens)]
        rounds = [about for about in known if about is not None]
        first = next((i for i, about in enumerate(known) if about is not None), len(known))
        return Finished(
            key=self.key,
            tokens=np.asarray(self.tokens, np.int64),
            origins=np.empty(0, np.int64),
            finish=finish,
            rounds=len(rounds),
            forwards=sum(forwards for *_, forwards in rounds),
            reused=sum(source not in _OWN_DRAFTS for _, _, source, _ in rounds),
            # A round behind the last token was cut by the end; the prompt's token is in none.
            round_tokens=len(known) - first,
            error=error,
        )


def flush(address: Address) -> None:
    """Empty the server's prefix cache; it takes this only once nothing runs any more.

    Raises:
        DataError: it would not within `FLUSHED_WITHIN_S`.
    """
    deadline = time.monotonic() + FLUSHED_WITHIN_S
    while time.monotonic() < deadline:
        connection = address.connect()
        try:
            connection.request("POST", "/flush_cache", headers=address.headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return
        except (OSError, http.client.HTTPException):
            break
        finally:
            connection.close()
        time.sleep(0.1)
    raise DataError(
        f"The server at {address.url} does not empty its prefix cache.",
        "See whether something else sends it requests.",
    )
