"""Objects and chunks of the OpenAI API. One shape each for whole answers and for streams."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recguide_core import metrics
from recguide_core.records import Finish
from recguide_core.serving.generation import Generation, Piece
from recguide_core.serving.streaming import Vocabulary

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not."""


@dataclass(frozen=True, slots=True)
class Head:
    """Fields that all objects of one request share.

    Attributes:
        chat: chat completions, else text completions.
        vocabulary: spells tokens for logprobs; logprobs: whether they were asked for.
    """

    id: str
    model: str
    chat: bool
    fingerprint: str
    created: int
    vocabulary: Vocabulary
    logprobs: bool
    include_usage: bool

    def object(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """An object around `choices`."""
        if self.chat:
            name = "chat.completion.chunk" if chunk else "chat.completion"
        else:
            name = "text_completion"
        made: dict[str, Any] = {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }
        if chunk and self.include_usage:
            made["usage"] = None
        return made


def finish_reason(finish: Finish) -> str:
    """The API's word; an aborted answer was cut at some length."""
    return "stop" if finish is Finish.STOP else "length"


def whole_choice(
    head: Head, generation: Generation, text: str, pieces: Sequence[Piece]
) -> dict[str, Any]:
    """The choice of a whole answer."""
    assert generation.finished is not None
    logprobs = None
    if head.logprobs:
        logprobs = _join([logprobs_of(head, generation, piece) for piece in pieces], head.chat)
    choice: dict[str, Any] = {"index": generation.index}
    if head.chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    choice["logprobs"] = logprobs
    choice["finish_reason"] = finish_reason(generation.finished.finish)
    return choice


def first_chunk(head: Head, generation: Generation, echo: str) -> dict[str, Any] | None:
    """What a stream says of a choice before its first token, if anything."""
    if head.chat:
        return _chunk(head, generation, {"delta": {"role": "assistant", "content": ""}})
    return _chunk(head, generation, {"text": echo}) if echo else None


def piece_chunk(
    head: Head, generation: Generation, piece: Piece, text: str
) -> dict[str, Any] | None:
    """A chunk with new text or logprobs; None when there is neither."""
    logprobs = logprobs_of(head, generation, piece) if head.logprobs else None
    if not text and not (piece.event is not None and piece.event.tokens and head.logprobs):
        return None
    body: dict[str, Any] = {"delta": {"content": text}} if head.chat else {"text": text}
    return _chunk(head, generation, {**body, "logprobs": logprobs})


def last_chunk(head: Head, generation: Generation) -> dict[str, Any]:
    """The chunk that says why a choice ended."""
    assert generation.finished is not None
    body: dict[str, Any] = {"delta": {}} if head.chat else {"text": ""}
    return _chunk(head, generation, body, finish_reason(generation.finished.finish))


def _chunk(
    head: Head, generation: Generation, body: dict[str, Any], finish: str | None = None
) -> dict[str, Any]:
    choice = {"index": generation.index, "logprobs": None, **body, "finish_reason": finish}
    return head.object([choice], chunk=True)


def usage_of(
    generations: Sequence[Generation], prompt_tokens: int, speculation: bool
) -> dict[str, Any]:
    """Token counts of a request and, as an extension, how its rounds went."""
    output = sum(len(g.finished.tokens) for g in generations if g.finished is not None)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output,
        "total_tokens": prompt_tokens + output,
    }
    if speculation:
        usage["speculation"] = _merged([g.speculation() for g in generations])
    return usage


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Speculation of all answers of a request: counts add, ratios follow from them."""
    total = dict(parts[0])
    for name in ("rounds", "forwards", "round_tokens", "branch_hits"):
        total[name] = sum(part[name] for part in parts)
    for name in ("blocks", "branch_hits_by_kind"):
        counts: Counter[str] = Counter()
        for part in parts:
            counts.update(part[name])
        total[name] = dict(counts)
    total["tau"] = metrics.tau(total["round_tokens"], total["forwards"])
    total["tokens_per_forward"] = metrics.tpf(total["round_tokens"], total["forwards"])
    total["accepted_length"] = metrics.accepted_length(total["round_tokens"], total["rounds"])
    return total


# -- logprobs -------------------------------------------------------------------------------


def logprobs_of(head: Head, generation: Generation, piece: Piece) -> dict[str, Any]:
    """Logprobs of a piece's tokens, in the shape of the API in use."""
    event = piece.event
    if event is None:
        return _join([], head.chat)
    start = piece.offset
    rows = list(zip(event.tokens, event.logprobs, event.top_logprobs, strict=True))
    if head.chat:
        return {"content": [_chat_row(head, *row) for row in rows], "refusal": None}
    offsets = generation.text.offsets[start : start + len(rows)]
    return {
        "tokens": [_spell(head, token) for token, _, _ in rows],
        "token_logprobs": [_finite(value) for _, value, _ in rows],
        "top_logprobs": [{_spell(head, t): _finite(v) for t, v in top} for _, _, top in rows],
        "text_offset": offsets,
    }


def _chat_row(head: Head, token: int, value: float, top: list[tuple[int, float]]) -> dict[str, Any]:
    return {
        **_entry(head, token, value),
        "top_logprobs": [_entry(head, other, alternative) for other, alternative in top],
    }


def _entry(head: Head, token: int, value: float) -> dict[str, Any]:
    spelled = head.vocabulary.bytes_of(token)
    return {
        "token": spelled.decode("utf-8", "replace"),
        "logprob": _finite(value),
        "bytes": list(spelled),
    }


def _spell(head: Head, token: int) -> str:
    spelled = head.vocabulary.bytes_of(token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        # Several tokens may be parts of characters; their bytes keep them apart.
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(value: float) -> float:
    return max(value, LEAST_LOGPROB) if math.isfinite(value) else LEAST_LOGPROB


def _join(parts: list[dict[str, Any]], chat: bool) -> dict[str, Any]:
    """Logprobs of several pieces as one."""
    if chat:
        return {"content": [row for part in parts for row in part["content"]], "refusal": None}
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [value for part in parts for value in part[name]] for name in names}


def now() -> int:
    """Unix time of an object."""
    return int(time.time())
