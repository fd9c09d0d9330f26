"""The standard error object, and how every kind of failure becomes one. No traceback leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from recguide_core.errors import CapacityError, RecGuideError

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer other than 200.

    Args:
        param: the offending field of the request; code: a short machine-readable reason.
        retry_after: seconds after which trying again makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        fallback = "invalid_request_error" if self.status < 500 else "server_error"
        return TYPES.get(self.status, fallback)

    def body(self) -> dict[str, Any]:
        """The standard error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


class JsonResponse(Response):
    """JSON in ASCII, so that whatever a message quotes can be sent."""

    media_type = "application/json"

    def __init__(
        self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.value = content
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(error: ApiError) -> JsonResponse:
    """The HTTP answer of an error."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonResponse(error.body(), error.status, headers)


def unsupported(param: str, reason: str) -> ApiError:
    """A field that the API knows and this server does not do."""
    return ApiError(400, reason, param=param, code="unsupported_parameter")


def from_core(error: RecGuideError) -> ApiError:
    """An error of the core, with its remedy."""
    retry = 1 if isinstance(error, CapacityError) else None
    return ApiError(error.http_status, str(error), retry_after=retry)


def from_validation(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body, named by its path."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"] if part != "body"]
    param = ".".join(parts)[:200] or None
    if first["type"] == "extra_forbidden":
        return ApiError(
            400,
            f"Unrecognized request argument: {param}. Remove it, or see /openapi.json.",
            param=param,
            code="unknown_parameter",
        )
    where = f"'{param}': " if param else ""
    return ApiError(400, f"{where}{first['msg']}.", param=param, code="invalid_value")


def from_http(error: HTTPException) -> ApiError:
    """Routing errors: no such path, wrong method."""
    if error.status_code == 404:
        return ApiError(404, "No such path; see /openapi.json.", code="unknown_url")
    return ApiError(error.status_code, str(error.detail))
