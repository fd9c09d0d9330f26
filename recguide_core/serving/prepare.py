"""From a checked body to engine requests: prompts, budgets, answers.

Whatever the body asks for is either done or refused by name; nothing is silently dropped.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide_core.records import Request
from recguide_core.serving.chat import prompt_of
from recguide_core.serving.errors import ApiError, unsupported
from recguide_core.serving.generation import Generation
from recguide_core.serving.runtime import Runtime
from recguide_core.serving.schema import ChatBody, CompletionBody, GenerationBody
from recguide_core.serving.streaming import TextStream
from recguide_core.serving.wishes import choose_method, sampling_of, stop_strings

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
    prompts = await encode(runtime, [prompt_of(runtime.model, body.messages)])
    limit = body.max_completion_tokens or body.max_tokens
    return _prepare(runtime, body, prompts, limit, logprobs, key)


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
    texts, prompts = await _prompts(runtime, body)
    # The completions API has 16 as its default budget.
    limit = body.max_tokens if body.max_tokens is not None else 16
    prepared = _prepare(runtime, body, prompts, limit, body.logprobs, key)
    if body.echo:
        if texts is None:
            texts = [runtime.tokenizer.decode(ids, skip_special=False) for ids in prompts]
        prepared.echo = [text for text in texts for _ in range(body.n or 1)]
    return prepared


async def _prompts(
    runtime: Runtime, body: CompletionBody
) -> tuple[list[str] | None, list[list[int]]]:
    """A prompt is a text, token ids, or a list of either; texts (None = ids were sent) and ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt], await encode(runtime, [prompt])
    if not prompt:
        raise ApiError(400, "'prompt' is empty.", param="prompt")
    texts = [part for part in prompt if isinstance(part, str)]
    if texts:
        return texts, await encode(runtime, texts)
    ids = [part for part in prompt if isinstance(part, int)]
    return None, [ids] if ids else [part for part in prompt if isinstance(part, list)]


async def encode(runtime: Runtime, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts; long ones are tokenized outside the event loop.

    Raises:
        ApiError: a prompt is too long whatever its tokens are, so it is not even tokenized.
    """
    longest, context = runtime.vocabulary.longest, runtime.engine.context
    for text in texts:
        if longest is not None and len(text) > longest * context:
            raise ApiError(
                400,
                f"A prompt of {len(text)} characters exceeds this model's context of {context} "
                "tokens. Shorten the prompt.",
                param="prompt",
                code="context_length_exceeded",
            )

    def work() -> list[list[int]]:
        return [runtime.tokenizer.encode(text) for text in texts]

    if sum(map(len, texts)) < LONG_TEXT:
        return work()
    return await asyncio.to_thread(work)


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
