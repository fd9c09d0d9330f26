"""The page at `/` and the stream that feeds it: every round with tokens, origins and margins."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from recguide_core.engine.events import Event
from recguide_core.records import BranchKind, Origin, Source
from recguide_core.serving.answer import Answer
from recguide_core.serving.errors import ApiError
from recguide_core.serving.generation import Generation, Piece
from recguide_core.serving.openai_api import ERRORS, STREAMED, check_model
from recguide_core.serving.prepare import prepare_chat
from recguide_core.serving.responses import usage_of
from recguide_core.serving.runtime import Runtime
from recguide_core.serving.schema import ChatBody
from recguide_core.serving.sse import EventStream

PAGE = resources.files("recguide_core.serving") / "page"
FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
    "stream.js": "text/javascript; charset=utf-8",
    "transcript.js": "text/javascript; charset=utf-8",
    "plots.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'self'; style-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}

REUSED_KIND = {
    Source.CORRECTION: "reused-correction",
    Source.CONTINUATION: "reused-continuation",
    Source.POSITION: "reused-position",
}


def routes(runtime: Runtime) -> APIRouter:
    """The router of the page."""
    router = APIRouter(responses=ERRORS, tags=["Playground"])

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file("index.html")

    @router.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        return _file(name)

    @router.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return _file("icon.svg")

    @router.post("/playground/stream", responses=STREAMED)
    async def stream(body: ChatBody, request: Request) -> Response:
        """A chat as a stream of rounds; takes the body of a chat completion with n = 1."""
        check_model(runtime, body.model)
        if (body.n or 1) != 1:
            raise ApiError(400, "The playground shows one answer.", param="n")
        prepared = await prepare_chat(runtime, body, f"play-{secrets.token_hex(12)}")
        prepared.stream = True
        prepared.generations[0].detailed = True
        running = Answer(runtime, prepared, request)
        await running.start()
        return EventStream(_rounds(runtime, running), running)

    return router


def _file(name: str) -> Response:
    if name not in FILES:
        raise ApiError(404, "No such file.", code="unknown_url")
    return Response((PAGE / name).read_bytes(), media_type=FILES[name], headers=HEADERS)


async def _rounds(runtime: Runtime, running: Answer) -> AsyncGenerator[dict[str, Any], None]:
    generation = running.generations[0]
    yield {
        "type": "start",
        "method": generation.method,
        "prompt_tokens": running.prepared.prompt_tokens,
    }
    async for generation, piece in running.pieces():
        assert piece.event is not None
        yield round_record(generation, piece, piece.event)
    done = generation.finished
    assert done is not None and generation.first is not None and generation.end is not None
    yield {
        "type": "end",
        "finish": str(done.finish),
        "ttft_ms": 1e3 * (generation.first - generation.arrival),
        "decode_seconds": generation.end - generation.first,
        "tokens": [int(token) for token in done.tokens],
        "usage": usage_of([generation], running.prepared.prompt_tokens, True),
    }


def round_record(generation: Generation, piece: Piece, event: Event) -> dict[str, Any]:
    """What the page draws of one step."""
    start = piece.offset
    pieces = generation.text.pieces[start : start + len(event.tokens)]
    margins = event.margins or [1.0] * len(event.tokens)
    if piece.last and pieces and not generation.text.stopped:
        pieces[-1] += _left_over(piece.text, "".join(pieces))
    tokens = [
        {"id": token, "text": text, "kind": kind_of(origin, event.source), "margin": margin}
        for token, text, origin, margin in zip(
            event.tokens, pieces, event.origins, margins, strict=True
        )
    ]
    return {
        "type": "round",
        "at_ms": 1e3 * (piece.at - generation.arrival),
        "block": event.block,
        "accepted": event.accepted,
        "source": Source(event.source).name.lower(),
        "entropy": event.entropy if event.entropy == event.entropy else None,
        "hit": event.hit,
        "branches": [
            {"kind": BranchKind(kind).name.lower(), "position": position, "block": block}
            for kind, position, block in piece.branches
        ],
        "tokens": tokens,
    }


def _left_over(text: str, shown: str) -> str:
    """Characters that the end of the answer released: incomplete bytes."""
    return text[len(shown) :] if text.startswith(shown) else ""


def kind_of(origin: int, source: int) -> str:
    """The colour class of a token: where it came from, and how its draft was made."""
    if origin == Origin.DRAFT:
        return REUSED_KIND.get(Source(source), "draft")
    return Origin(origin).name.lower()
