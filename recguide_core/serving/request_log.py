"""One structured line for each API request, and its count in the metrics."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recguide_core.serving.prometheus import ServerMetrics

log = logging.getLogger("recguide.request")

CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = ("/health", "/ready", "/metrics", "/page/", "/favicon")
OTHER = "other"


class RequestLog:
    """Outermost middleware: names each request, times it, writes its line.

    Routes add what they know to `scope["state"]["facts"]`.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts: dict[str, Any] = {}
        request_id = _id_of(scope)
        scope.setdefault("state", {}).update(facts=facts, request_id=request_id)
        began, status = time.perf_counter(), 499

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            path = scope["path"] if scope["path"] in self._paths else OTHER
            self._metrics.http.labels(path, str(status)).inc()
            self._write(scope, status, time.perf_counter() - began, facts)

    def _write(self, scope: Scope, status: int, seconds: float, facts: dict[str, Any]) -> None:
        client = scope.get("client")
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z",
            "request": scope["state"]["request_id"],
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "ms": round(1e3 * seconds, 2),
            **facts,
        }
        quiet = scope["path"] == "/" or scope["path"].startswith(QUIET)
        log.log(logging.DEBUG if quiet and status < 400 else logging.INFO, json.dumps(line))


def _id_of(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and CLIENT_ID.fullmatch(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return f"req-{secrets.token_hex(8)}"
