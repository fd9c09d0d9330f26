"""The door: the API key, and bodies that are small, UTF-8, JSON and not nested too deep."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from typing import Any, NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recguide_core.serving.errors import ApiError, error_response
from recguide_core.serving.settings import ServerSettings

BODIES = frozenset({"/v1/completions", "/v1/chat/completions", "/playground/stream"})
"""Paths that take a body; others answer for themselves that they take none."""

OPEN = frozenset({"/", "/health", "/ready", "/favicon.ico"})
"""Paths that need no key, beside the page's files, which hold no secrets."""

BODY_SECONDS = 30.0
# An unclosed string runs to the end: each character is looked at once, whatever is sent.
STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
BRACKET = re.compile(r"[\[\]{}]")


class Guard:
    """Middleware between the log and the routes."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_key(scope)
            if scope["method"] == "POST" and scope["path"] in BODIES:
                body = await self._read(scope, receive)
                check_json(body, self._settings.max_nesting)
                receive = replay(body, receive)
        except ApiError as error:
            scope["state"]["facts"]["error"] = error.code or error.kind
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        key, path = self._settings.api_key, scope["path"]
        if key is None or path in OPEN or path.startswith("/page/"):
            return
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        if not hmac.compare_digest(given, key.encode()):
            raise ApiError(
                401,
                "Missing or wrong API key; send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
            )

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        # A web page can post a form or plain text to this machine without asking; JSON it cannot.
        if kind != b"application/json":
            raise ApiError(415, "Send 'Content-Type: application/json'.", code="wrong_content_type")
        length = headers.get(b"content-length", b"0")
        most = self._settings.max_body
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "The client left.", code="client_closed")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, f"No whole body within {BODY_SECONDS:g} s.") from None


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body exceeds {most} bytes.", code="body_too_large")


def replay(body: bytes, receive: Receive) -> Receive:
    """A receive channel that yields the body once, then whatever the client does next."""
    given = False

    async def channel() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return channel


def check_json(body: bytes, max_nesting: int) -> Any:
    """Parse a body strictly.

    Raises:
        ApiError: not UTF-8, not JSON (NaN and infinities are none), or nested too deep.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not UTF-8 (byte {error.start}).") from None
    if _depth_exceeds(text, max_nesting):
        raise _malformed(f"The body nests deeper than {max_nesting} levels.")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _malformed(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except (ValueError, RecursionError):
        raise _malformed("The body is not JSON that this server reads.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _malformed(f"The body is not JSON: {name} is no JSON number.")


def _malformed(message: str) -> ApiError:
    return ApiError(400, message, code="malformed_json")


def _depth_exceeds(text: str, most: int) -> bool:
    depth = 0
    for bracket in BRACKET.finditer(STRING.sub("", text)):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > most:
            return True
    return False
