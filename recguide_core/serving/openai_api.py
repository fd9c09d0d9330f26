"""The OpenAI routes: models, completions and chat completions, whole and streamed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from recguide_core.serving import responses
from recguide_core.serving.answer import Answer
from recguide_core.serving.errors import ApiError, JsonResponse
from recguide_core.serving.generation import Generation, Piece
from recguide_core.serving.prepare import Prepared, prepare_chat, prepare_completion
from recguide_core.serving.responses import Head
from recguide_core.serving.runtime import Runtime
from recguide_core.serving.schema import ChatBody, CompletionBody, ErrorBody
from recguide_core.serving.sse import EventStream, while_connected

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "The request is wrong; the message says how.",
        401: "The API key is missing or wrong.",
        404: "No such model or path.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The body is not declared as JSON.",
        429: "The queue is full; see Retry-After.",
        500: "The answer failed.",
        503: "The server drains or its engine is broken.",
        504: "The request timeout has passed.",
    }.items()
}
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completion, or its chunks as server-sent events.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


def routes(runtime: Runtime) -> APIRouter:
    """The router of `/v1`."""
    router = APIRouter(prefix="/v1", responses=ERRORS, tags=["OpenAI"])

    @router.get("/models", response_class=JsonResponse)
    async def models() -> Response:
        """The models that this server has."""
        return JsonResponse({"object": "list", "data": [_model(runtime)]})

    @router.get("/models/{model:path}", response_class=JsonResponse)
    async def model(model: str) -> Response:
        """One model."""
        check_model(runtime, model)
        return JsonResponse(_model(runtime))

    @router.post("/completions", responses=STREAMED, response_class=JsonResponse)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue a prompt."""
        check_model(runtime, body.model)
        key = f"cmpl-{secrets.token_hex(12)}"
        return await answer(runtime, await prepare_completion(runtime, body, key), key, request)

    @router.post("/chat/completions", responses=STREAMED, response_class=JsonResponse)
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a conversation."""
        check_model(runtime, body.model)
        key = f"chatcmpl-{secrets.token_hex(12)}"
        return await answer(runtime, await prepare_chat(runtime, body, key), key, request)

    return router


def check_model(runtime: Runtime, name: str) -> None:
    """Raise 404 unless this is the served model."""
    if name != runtime.settings.served_name:
        raise ApiError(
            404,
            f"This server has no such model; it serves '{runtime.settings.served_name}'.",
            param="model",
            code="model_not_found",
        )


def _model(runtime: Runtime) -> dict[str, Any]:
    return {
        "id": runtime.settings.served_name,
        "object": "model",
        "created": int(runtime.started),
        "owned_by": "recguide",
        "max_model_len": runtime.engine.context,
    }


async def answer(runtime: Runtime, prepared: Prepared, key: str, request: Request) -> Response:
    """Run what was prepared, as a stream or as a whole."""
    head = Head(
        id=key,
        model=runtime.settings.served_name,
        chat=key.startswith("chat"),
        fingerprint=f"recguide-{runtime.model.hash[:12]}",
        created=responses.now(),
        vocabulary=runtime.vocabulary,
        logprobs=prepared.logprobs is not None,
        include_usage=prepared.include_usage,
    )
    running = Answer(runtime, prepared, request)
    if not prepared.stream:
        return await while_connected(request, _whole(runtime, running, head))
    # The engine's refusal is still an HTTP status; only then does the stream begin.
    await running.start()
    return EventStream(_chunks(runtime, running, head), running)


async def _whole(runtime: Runtime, running: Answer, head: Head) -> Response:
    pieces: dict[int, list[Piece]] = {g.index: [] for g in running.generations}
    async with running:
        await running.start()
        async for generation, piece in running.pieces():
            pieces[generation.index].append(piece)
    choices = []
    for generation, echo in zip(running.generations, running.prepared.echo, strict=True):
        own = pieces[generation.index]
        text = echo + "".join(piece.text for piece in own)
        choices.append(responses.whole_choice(head, generation, text, own))
    body = head.object(choices, chunk=False)
    body["usage"] = _usage(runtime, running.prepared, running.generations)
    return JsonResponse(body)


async def _chunks(
    runtime: Runtime, running: Answer, head: Head
) -> AsyncGenerator[dict[str, Any], None]:
    for generation, echo in zip(running.generations, running.prepared.echo, strict=True):
        opening = responses.first_chunk(head, generation, echo)
        if opening is not None:
            yield opening
    async for generation, piece in running.pieces():
        chunk = responses.piece_chunk(head, generation, piece, piece.text)
        if chunk is not None:
            yield chunk
        if piece.last:
            yield responses.last_chunk(head, generation)
    if head.include_usage:
        closing = head.object([], chunk=True)
        closing["usage"] = _usage(runtime, running.prepared, running.generations)
        yield closing


def _usage(
    runtime: Runtime, prepared: Prepared, generations: Sequence[Generation]
) -> dict[str, Any]:
    shown = runtime.settings.speculation_usage
    return responses.usage_of(generations, prepared.prompt_tokens, shown)
