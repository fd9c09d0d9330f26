"""Prompts for a trace that has lengths and no text: cut from the data's own text.

Requests that share a hash id share those `HASH_BLOCK` tokens, so that a prefix cache finds what it
would have found; what no hash id covers is the request's own. Engines get ids of the exact length.
A server takes text and counts it itself, so two probes tell how many characters make a token there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from recguide_core.bench.jobs import Renders
from recguide_core.bench.load import Job
from recguide_core.datasets import Prompt
from recguide_core.datasets.trace import HASH_BLOCK, Recorded, Trace
from recguide_core.errors import DataError
from recguide_core.records import IntArray

PROBES = (400, 4000)
"""Characters of the two probes."""
_SHARED, _OWN = 0, 1


def trace_jobs(
    trace: Trace, prompts: Sequence[Prompt], renders: Renders, *, raw: bool, seed: int
) -> list[Job]:
    """Jobs with the trace's lengths, for an engine that takes ids.

    The chat template (unless `raw`) is part of a prompt's length; a prompt too short for it is sent
    without.
    """
    before, after = ((), ()) if raw else _template(renders)
    around = len(before) + len(after)
    ids = [renders.encode([{"role": "user", "content": p.text}], True) for p in prompts]
    pool = np.concatenate([np.asarray(part, dtype=np.int64) for part in ids])
    jobs = []
    for index, request in enumerate(trace.requests):
        wanted = request.input_tokens
        wraps = wanted > around
        body = _cut(request, index, wanted - around if wraps else wanted, len(pool), seed)
        tokens = pool[body]
        if wraps:
            tokens = np.concatenate([before, tokens, after]).astype(np.int64)
        jobs.append(_job(trace, request, f"{wanted} tokens", tokens, seed))
    return jobs


def trace_texts(
    trace: Trace, prompts: Sequence[Prompt], measure: Callable[[str], int], *, seed: int
) -> tuple[list[Job], TextScale]:
    """Jobs with about the trace's lengths, for a server that takes text, and the scale used.

    Args:
        measure: prompt tokens that the server counts for a text.
    """
    text = "\n".join(prompt.text for prompt in prompts)
    scale = _probe(text, measure)
    block = round(HASH_BLOCK * scale.characters)
    jobs = []
    for index, request in enumerate(trace.requests):
        count = max(1, round((request.input_tokens - scale.around) * scale.characters))
        places = _cut(request, index, count, len(text), seed, block)
        cut = "".join(text[i] for i in places)
        jobs.append(_job(trace, request, cut, np.empty(0, np.int64), seed))
    return jobs, scale


@dataclass(frozen=True, slots=True)
class TextScale:
    """How a server counts text: tokens = `around` + characters / `characters`."""

    around: float
    characters: float


def _probe(text: str, measure: Callable[[str], int]) -> TextScale:
    long = (text * (PROBES[1] // len(text) + 1))[: PROBES[1]]
    few, many = measure(long[: PROBES[0]]), measure(long)
    if many <= few:
        raise DataError(
            f"The server counts {few} and {many} tokens for prompts of {PROBES[0]} and {PROBES[1]} "
            "characters, so a trace's lengths cannot be met.",
            "It must report usage.prompt_tokens; or replay with an engine.",
        )
    characters = (PROBES[1] - PROBES[0]) / (many - few)
    return TextScale(max(0.0, few - PROBES[0] / characters), characters)


def _job(trace: Trace, request: Recorded, text: str, tokens: IntArray, seed: int) -> Job:
    name = trace.path.name.split(".")[0]
    messages = (("user", text),) if len(tokens) == 0 else (("user", f"{name} {seed} {text}"),)
    prompt = Prompt(f"{name}/{request.line}", messages, name, max_tokens=request.output_tokens)
    return Job(prompt, tokens, request.output_tokens, request.arrival_s)


def _cut(
    request: Recorded, index: int, count: int, pool: int, seed: int, block: int = HASH_BLOCK
) -> IntArray:
    """Places in a pool that make a prompt of `count`: a run for each hash id, then its own."""
    parts = [_run((_SHARED, seed, name), block, pool) for name in request.blocks]
    missing = count - block * len(parts)
    if missing > 0:
        parts.append(_run((_OWN, seed, index), missing, pool))
    return np.concatenate(parts)[:count]


def _run(name: tuple[int, int, int], count: int, pool: int) -> IntArray:
    start = int(np.random.default_rng(name).integers(pool))
    return (start + np.arange(count)) % pool


def _template(renders: Renders) -> tuple[IntArray, IntArray]:
    """Ids that the chat template puts before and behind one message: what two texts share."""
    one, two = (
        renders.encode([{"role": "user", "content": word}], False) for word in ("alpha", "zebra")
    )
    before = _shared(one, two)
    after = _shared(one[len(before) :][::-1], two[len(before) :][::-1])[::-1]
    return before, after


def _shared(one: Sequence[int], two: Sequence[int]) -> IntArray:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))
    return np.array([token for token, _ in pairs], dtype=np.int64)
