"""Runs the answers of one request to their end: admission, deadline, disconnect, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest

from recguide_core import metrics
from recguide_core.errors import RecGuideError
from recguide_core.records import Finish
from recguide_core.serving.errors import ApiError, from_core
from recguide_core.serving.generation import Generation, Piece
from recguide_core.serving.prepare import Prepared
from recguide_core.serving.runtime import Runtime

TIMEOUT_HEADER = "x-request-timeout"


class Answer:
    """The running answers of a request.

    `start` it, then use it as an async context: leaving that aborts whatever still runs.
    """

    def __init__(self, runtime: Runtime, prepared: Prepared, http: HttpRequest) -> None:
        self.runtime = runtime
        self.prepared = prepared
        self.generations = prepared.generations
        self._seconds = timeout_of(http, runtime.settings.request_timeout)
        self._deadline = asyncio.get_running_loop().time() + self._seconds
        self._facts: dict[str, Any] = http.scope["state"]["facts"]
        self._entered = False
        self._submitted: list[Generation] = []
        self._inbox: asyncio.Queue[tuple[Generation, Piece]] = asyncio.Queue()

    async def start(self) -> None:
        """Enter the queue and wait until the engine has accepted every answer.

        Raises:
            ApiError: no room, or the engine refuses; nothing runs then.
        """
        self.runtime.admission.enter(len(self.generations))
        self._entered = True
        self._facts.update(method_used=self.generations[0].method, stream=self.prepared.stream)
        self.runtime.metrics.prompt_tokens.inc(self.prepared.prompt_tokens)
        waits: list[asyncio.Future[None]] = []
        try:
            async with asyncio.timeout_at(self._deadline):
                for generation in self.generations:
                    generation.inbox = self._inbox
                    waits.append(self.runtime.thread.submit(generation))
                    self._submitted.append(generation)
                await asyncio.gather(*waits)
        except BaseException as error:
            self._give_up()
            raise self._translated(error) from None

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give_up()
        if self._submitted:
            self._note()

    async def pieces(self) -> AsyncIterator[tuple[Generation, Piece]]:
        """Pieces of all answers as they come, until all have ended.

        Raises:
            ApiError: 504 at the deadline, 500 when an answer fails; the others are aborted.
        """
        left = len(self.generations)
        while left:
            try:
                async with asyncio.timeout_at(self._deadline):
                    generation, piece = await self._inbox.get()
            except TimeoutError as error:
                raise self._translated(error) from None
            self._check(piece)
            left -= piece.last
            yield generation, piece

    def _check(self, piece: Piece) -> None:
        if piece.error is not None:
            raise from_core(piece.error)
        done = piece.finished
        if done is not None and done.finish is Finish.ERROR:
            raise ApiError(500, f"The answer failed: {done.error}.", code="generation_failed")
        if done is not None and done.finish is Finish.ABORT:
            raise ApiError(503, "The answer was aborted by the server.", code="aborted")

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, TimeoutError):
            return ApiError(
                504,
                f"No complete answer within {self._seconds:g} s (request timeout).",
                code="request_timeout",
            )
        return from_core(error) if isinstance(error, RecGuideError) else error

    def _give_up(self) -> None:
        """Abort whatever still runs; places that were never submitted are given back."""
        for generation in self._submitted:
            if generation.end is None:
                self.runtime.thread.abort(generation)
        if self._entered:
            for _ in range(len(self.generations) - len(self._submitted)):
                self.runtime.admission.leave()
        self._entered = False

    def _note(self) -> None:
        """What the log line says of the answers."""
        done = [g for g in self.generations if g.finished is not None]
        rounds = sum(g.finished.rounds for g in done if g.finished)
        forwards = sum(g.finished.forwards for g in done if g.finished)
        gained = sum(g.finished.round_tokens for g in done if g.finished)
        first = min((g.first for g in self.generations if g.first is not None), default=None)
        arrival = self.generations[0].arrival
        self._facts.update(
            choices=len(self.generations),
            finish=sorted({str(g.finished.finish) for g in done if g.finished}),
            prompt_tokens=self.prepared.prompt_tokens,
            completion_tokens=sum(g.sent for g in self.generations),
            rounds=rounds,
            forwards=forwards,
            tau=_rounded(metrics.tau(gained, forwards)),
            ttft_ms=_rounded(None if first is None else metrics.ttft_ms(arrival, first)),
        )
        if len(done) == 1 and done[0].first is not None and done[0].end is not None:
            tpot = metrics.tpot_ms(done[0].first, done[0].end, done[0].sent)
            self._facts["tpot_ms"] = _rounded(tpot)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def timeout_of(http: HttpRequest, most: float) -> float:
    """Seconds that a request may take: the server's limit, or less if the client says so."""
    asked = http.headers.get(TIMEOUT_HEADER)
    if asked is None:
        return most
    try:
        seconds = float(asked)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ApiError(
            400,
            f"The header {TIMEOUT_HEADER} is no number of seconds above 0.",
            param=TIMEOUT_HEADER,
        )
    return min(seconds, most)
