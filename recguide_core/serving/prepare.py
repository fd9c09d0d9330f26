"""From a checked body to engine requests: prompts, sampling, budgets, methods.

Whatever the body asks for is either done or refused by name; nothing is silently dropped.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide_core.engine.planners import TAKES_BLOCK
from recguide_core.errors import nearest
from recguide_core.records import Request, Sampling
from recguide_core.serving.chat import prompt_of
from recguide_core.serving.errors import ApiError, unsupported
from recguide_core.serving.generation import Generation
from recguide_core.serving.runtime import Runtime
from recguide_core.serving.schema import (
    INT64,
    ChatBody,
    CompletionBody,
    GenerationBody,
    SpeculationOptions,
)
from recguide_core.serving.streaming import TextStream

LEAST_TEMPERATURE = 1e-3
LONG_TEXT = 1 << 14
"""Texts from this many characters on are tokenized outside the event loop."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "suffix": ("",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields that are not supported, and the values that ask for nothing."""


@dataclass(slots=True)
class Prepared:
    """A request ready to run.

    Attributes:
        generations: answers, prompt by prompt, n of each.
        prompt_tokens: over all prompts, each counted once.
        logprobs: alternatives asked for, None = no logprobs.
        echo: text to put before each answer ("" = none), one per answer.
    """

    generations: list[Generation]
    prompt_tokens: int
    logprobs: int | None
    echo: list[str]
    stream: bool
    include_usage: bool


def refuse_unsupported(body: GenerationBody) -> None:
    """Raise for a field that asks for something the server does not do."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise unsupported(name, f"'{name}' is not supported; leave it out.")
    wanted = body.response_format if isinstance(body, ChatBody) else None
    if wanted is not None and wanted.type != "text":
        raise unsupported("response_format", "Only response_format 'text' is supported.")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "'stream_options' needs 'stream': true.", param="stream_options")


async def prepare_chat(runtime: Runtime, body: ChatBody, key: str) -> Prepared:
    """Answers that a chat asks for.

    Raises:
        ApiError: the body cannot be served.
    """
    refuse_unsupported(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    both = body.max_tokens is not None and body.max_completion_tokens is not None
    if both and body.max_tokens != body.max_completion_tokens:
        raise ApiError(
            400, "max_tokens and max_completion_tokens differ; send one.", param="max_tokens"
        )
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    ids = await encode(runtime, prompt_of(runtime.model, body.messages))
    limit = body.max_completion_tokens or body.max_tokens
    return _prepare(runtime, body, [ids], limit, logprobs, key)


async def prepare_completion(runtime: Runtime, body: CompletionBody, key: str) -> Prepared:
    """Answers that a completion asks for.

    Raises:
        ApiError: the body cannot be served.
    """
    refuse_unsupported(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "'best_of' is not supported beyond n; leave it out.")
    if body.echo and body.logprobs is not None:
        raise unsupported("echo", "'echo' together with 'logprobs' is not supported.")
    prompts = [await encode(runtime, p) if isinstance(p, str) else p for p in _prompts(body)]
    # The completions API has 16 as its default budget.
    limit = body.max_tokens if body.max_tokens is not None else 16
    prepared = _prepare(runtime, body, prompts, limit, body.logprobs, key)
    if body.echo:
        texts = [
            p if isinstance(p, str) else runtime.tokenizer.decode(p, skip_special=False)
            for p in _prompts(body)
        ]
        prepared.echo = [text for text in texts for _ in range(body.n or 1)]
    return prepared


def _prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """A prompt is a text, token ids, or a list of either."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "'prompt' is empty.", param="prompt")
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return prompt


async def encode(runtime: Runtime, text: str) -> list[int]:
    """Token ids of a prompt."""
    if len(text) < LONG_TEXT:
        return runtime.tokenizer.encode(text)
    return await asyncio.to_thread(runtime.tokenizer.encode, text)


def _prepare(
    runtime: Runtime,
    body: GenerationBody,
    prompts: Sequence[list[int]],
    limit: int | None,
    logprobs: int | None,
    key: str,
) -> Prepared:
    settings, n = runtime.settings, body.n or 1
    if len(prompts) * n > settings.max_choices:
        raise ApiError(
            400,
            f"{len(prompts)} prompts x n = {n} exceed {settings.max_choices} answers.",
            param="n",
        )
    if logprobs is not None and logprobs > settings.max_logprobs:
        raise ApiError(
            400,
            f"At most {settings.max_logprobs} alternatives are reported.",
            param="logprobs" if isinstance(body, CompletionBody) else "top_logprobs",
        )
    stops = stop_strings(body, settings.max_stops, settings.max_stop_chars)
    method, planner, block = choose_method(runtime, body.speculation)
    seed = body.seed if body.seed is not None else secrets.randbits(63)
    now, generations = time.perf_counter(), []
    for place, ids in enumerate(prompts):
        check_prompt(runtime, ids)
        for choice in range(n):
            index = place * n + choice
            text = TextStream(runtime.vocabulary.decoder(), stops)
            request = Request(
                key=f"{key}/{index}",
                prompt=np.asarray(ids, dtype=np.int64),
                max_tokens=min(limit or runtime.room(len(ids)), runtime.engine.context),
                sampling=sampling_of(runtime, body, seed + choice),
                ignore_eos=bool(body.ignore_eos),
                stop=text.feed,
                logprobs=logprobs,
                planner=planner,
            )
            generations.append(Generation(request, index, method, block, text, now))
    options = body.stream_options
    return Prepared(
        generations=generations,
        prompt_tokens=sum(len(ids) for ids in prompts),
        logprobs=logprobs,
        echo=[""] * len(generations),
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
    )


def check_prompt(runtime: Runtime, ids: Sequence[int]) -> None:
    """Refuse what the engine could not run, in the API's words."""
    context, vocab = runtime.engine.context, runtime.model.config.vocab
    if not ids:
        raise ApiError(400, "The prompt is empty; send at least one token.", param="prompt")
    if len(ids) >= context:
        raise ApiError(
            400,
            f"The prompt has {len(ids)} tokens; this model's context holds {context} and at "
            "least one must be left for the answer. Shorten the prompt.",
            param="prompt",
            code="context_length_exceeded",
        )
    if max(ids) >= vocab:
        raise ApiError(400, f"Token ids must be below {vocab}.", param="prompt")
    if runtime.model.config.mask_id in ids:
        raise ApiError(400, "The prompt contains the MASK token.", param="prompt")


def stop_strings(body: GenerationBody, most: int, longest: int) -> list[str]:
    """The stop strings of a body, checked."""
    stops = [body.stop] if isinstance(body.stop, str) else (body.stop or [])
    if len(stops) > most:
        raise ApiError(400, f"At most {most} stop strings are allowed.", param="stop")
    for stop in stops:
        if not stop:
            raise ApiError(400, "A stop string is empty.", param="stop")
        if len(stop) > longest:
            raise ApiError(400, f"Stop strings have at most {longest} characters.", param="stop")
    return stops


def choose_method(runtime: Runtime, wish: SpeculationOptions | None) -> tuple[str, int, int]:
    """(method, planner index, block size or 0) that a request is served with."""
    if wish is None:
        return runtime.default_method, runtime.methods[runtime.default_method], 0
    if wish.enabled is False:
        if wish.method not in (None, "ar"):
            raise ApiError(
                400,
                "speculation.enabled is false, yet a method is named.",
                param="speculation.method",
            )
        return "ar", runtime.methods["ar"], 0
    method = wish.method or runtime.default_method
    if method not in runtime.methods:
        raise ApiError(
            400,
            f"Unknown or unavailable method. {nearest(method, runtime.methods)}",
            param="speculation.method",
            code="invalid_value",
        )
    block = wish.block_size or 0
    if block and method not in TAKES_BLOCK:
        raise ApiError(
            400,
            f"The method '{method}' has no fixed block size.",
            param="speculation.block_size",
            code="invalid_value",
        )
    return method, runtime.methods[method], block


def sampling_of(runtime: Runtime, body: GenerationBody, seed: int) -> Sampling:
    """Sampling of one answer; choice i of a seeded request uses seed + i."""
    temperature = runtime.settings.temperature if body.temperature is None else body.temperature
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ApiError(
            400,
            f"temperature must be 0 (greedy) or at least {LEAST_TEMPERATURE:g}.",
            param="temperature",
        )
    return Sampling(
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=(seed + INT64) % (2 * INT64) - INT64,
        logit_bias=biases_of(body, runtime.model.config.vocab),
    )


def biases_of(body: GenerationBody, vocab: int) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs of a body, checked."""
    pairs = []
    for name, bias in (body.logit_bias or {}).items():
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < vocab):
            raise ApiError(400, f"Keys are token ids below {vocab}.", param="logit_bias")
        if not -100 <= bias <= 100:
            raise ApiError(400, "A bias lies between -100 and 100.", param="logit_bias")
        pairs.append((int(name), float(bias)))
    if len(pairs) > 1024:
        raise ApiError(400, "At most 1024 tokens can be biased.", param="logit_bias")
    return tuple(pairs)
