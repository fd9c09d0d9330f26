"""Routes for those who run the server: health, readiness, metrics, what is in force."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from recguide_core.serving.errors import JsonResponse
from recguide_core.serving.openai_api import ERRORS
from recguide_core.serving.runtime import Runtime


def routes(runtime: Runtime) -> APIRouter:
    """The router of the status pages."""
    router = APIRouter(tags=["Status"], responses={k: ERRORS[k] for k in (401, 404)})
    unwell: dict[int | str, dict[str, Any]] = {
        503: {"description": "No, with the reason in `status`."}
    }

    @router.get("/health", response_class=JsonResponse, responses=unwell)
    async def health() -> Response:
        """200 while the engine lives and makes progress."""
        if runtime.healthy:
            return JsonResponse({"status": "ok"})
        status = "stalled" if runtime.thread.alive else "engine stopped"
        return JsonResponse({"status": status}, 503)

    @router.get("/ready", response_class=JsonResponse, responses=unwell)
    async def ready() -> Response:
        """200 while new requests are welcome; 503 from SIGTERM on."""
        if runtime.ready:
            return JsonResponse({"status": "ready"})
        status = "draining" if runtime.admission.draining else "unhealthy"
        return JsonResponse({"status": status}, 503, {"retry-after": "5"})

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(runtime.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/server_info", response_class=JsonResponse)
    async def server_info() -> Response:
        """Model, methods, guarantee, tables and limits in force."""
        return JsonResponse(runtime.info())

    return router
