"""Server-sent events, and work that ends when its client has gone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from recguide_core.serving.errors import ApiError

log = logging.getLogger("recguide.server")

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class ClientGoneError(Exception):
    """Nobody is left to answer."""


def encode_event(value: Any) -> bytes:
    """One event in the wire format."""
    return b"data: " + json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client leaves.

    Raises:
        ClientGoneError: it left before the end.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        watch.cancel()
        await _cancelled(task)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and let its own cleaning up finish."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


class EventStream(Response):
    """Sends the values of an iterator as events, then `[DONE]`.

    Args:
        owner: entered for as long as the stream lives, whether a value is ever read or not.

    An error after the first byte becomes an event with the standard error object, because the
    status line is out already.
    """

    def __init__(
        self,
        values: AsyncGenerator[dict[str, Any], None],
        owner: AbstractAsyncContextManager[Any],
    ) -> None:
        super().__init__(headers=HEADERS)
        self._owner = owner
        self._values = values
        # A stream's length is not known when its headers go out.
        self.raw_headers = [h for h in self.raw_headers if h[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        request = Request(scope, receive)
        async with self._owner:
            await send(start)
            try:
                await while_connected(request, self._send_all(scope, send))
            except ClientGoneError:
                scope["state"]["facts"]["client_left"] = True

    async def _send_all(self, scope: Scope, send: Send) -> None:
        async def write(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        try:
            async for value in self._values:
                await write(encode_event(value))
        except ApiError as error:
            scope["state"]["facts"]["error"] = error.code or error.kind
            await write(encode_event(error.body()))
        except Exception:
            log.exception("a stream failed")
            scope["state"]["facts"]["error"] = "internal"
            await write(encode_event(ApiError(500, "Internal error.").body()))
        finally:
            await self._values.aclose()
        await write(DONE, more=False)
