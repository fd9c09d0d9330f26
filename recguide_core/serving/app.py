"""Puts the routes together: errors, guards, log line, watchdog. One app a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from recguide_core import __version__
from recguide_core.serving import openai_api, playground, status
from recguide_core.serving.errors import (
    ApiError,
    error_response,
    from_http,
    from_validation,
)
from recguide_core.serving.guard import Guard
from recguide_core.serving.request_log import RequestLog
from recguide_core.serving.runtime import Runtime
from recguide_core.serving.sse import ClientGoneError

log = logging.getLogger("recguide.server")

WATCH_SECONDS = 1.0


def build_app(runtime: Runtime) -> FastAPI:
    """The ASGI application of a runtime; its lifespan starts and stops the engine thread."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        runtime.thread.start()
        watch = asyncio.create_task(watchdog(runtime))
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await asyncio.to_thread(runtime.thread.stop)

    app = FastAPI(
        title="RecGuide",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for router in (status.routes(runtime), openai_api.routes(runtime), playground.routes(runtime)):
        app.include_router(router)
    _describe(app)
    _handle_errors(app)
    settings = runtime.settings
    app.add_middleware(Guard, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", "x-request-timeout"],
        )
    paths = frozenset({"/", *app.openapi()["paths"]})
    app.add_middleware(RequestLog, metrics=runtime.metrics, paths=paths)
    return app


def _describe(app: FastAPI) -> None:
    """The schema without the framework's own 422, which this server never sends."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(name, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _handle_errors(app: FastAPI) -> None:
    def answer(request: Request, error: ApiError) -> Response:
        request.scope["state"]["facts"]["error"] = error.code or error.kind
        return error_response(error)

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, from_validation(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return answer(request, from_http(error))

    @app.exception_handler(ClientGoneError)
    async def client_gone(request: Request, _: ClientGoneError) -> Response:
        request.scope["state"]["facts"]["client_left"] = True
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> Response:
        return answer(request, ApiError(500, "Internal error; see the server's log."))


async def watchdog(runtime: Runtime) -> None:
    """Say when the engine makes no progress, and when it does again."""
    limit = runtime.settings.stall_timeout
    while True:
        await asyncio.sleep(min(WATCH_SECONDS, limit))
        stalled = runtime.thread.busy_seconds() > limit
        if stalled and not runtime.stalled:
            log.error("one step takes more than %g s:\n%s", limit, runtime.thread.where())
        if runtime.stalled and not stalled:
            log.warning("the engine moves again")
        runtime.stalled = stalled
