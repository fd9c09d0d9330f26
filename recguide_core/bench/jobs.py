"""From prompts to token ids: the jobs of a run and its warm-up, with hashes of what was sent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from recguide_core.bench.load import Job
from recguide_core.bench.rows import RequestRow
from recguide_core.datasets import Prompt
from recguide_core.errors import DataError, UsageError

# Never part of a data set, so that warming up cannot fill a prefix cache for the window.
WARMUP_TEXTS = (
    "Warm up: name three colours.",
    "Warm up: what is two plus two?",
    "Warm up: write a short greeting.",
    "Warm up: count from one to five.",
)
WARMUP_TOKENS = 24


class Renders(Protocol):
    """What is needed of a model to turn prompts into ids."""

    def encode(self, messages: Sequence[dict[str, str]], raw: bool) -> list[int]:
        """Token ids of a conversation, through the chat template unless `raw`."""


def make_jobs(
    prompts: Sequence[Prompt],
    renders: Renders,
    instructions: dict[str, str],
    *,
    raw: bool,
    max_tokens: int,
    context: int,
) -> list[Job]:
    """The jobs of a run, in order.

    Args:
        instructions: data set -> text around the task, with `{task}`.
        context: longest sequence that the model takes.

    Raises:
        UsageError: a prompt that leaves no room for an answer.
    """
    jobs = []
    encoded: dict[str, list[int]] = {}
    for prompt in prompts:
        if prompt.hash not in encoded:
            messages = [{"role": role, "content": text} for role, text in prompt.messages]
            around = instructions.get(prompt.dataset, "{task}")
            messages[-1]["content"] = around.replace("{task}", prompt.text)
            encoded[prompt.hash] = renders.encode(messages, raw)
        tokens = encoded[prompt.hash]
        room = context - len(tokens)
        if room < 1:
            raise UsageError(
                f"Prompt {prompt.id} of {prompt.dataset} has {len(tokens)} tokens, and the model's "
                f"context is {context}.",
                "Leave it out, shorten it, or choose a model with a longer context.",
            )
        wanted = prompt.max_tokens or max_tokens
        jobs.append(Job(prompt, np.asarray(tokens, dtype=np.int64), min(wanted, room)))
    return jobs


def warmup_jobs(count: int, renders: Renders, *, raw: bool, max_tokens: int) -> list[Job]:
    """`count` short jobs whose prompts occur in no data set."""
    jobs = []
    for number in range(count):
        text = WARMUP_TEXTS[number % len(WARMUP_TEXTS)]
        prompt = Prompt(f"warmup/{number}", (("user", text),), "warmup")
        tokens = renders.encode([{"role": "user", "content": text}], raw)
        ids = np.asarray(tokens, dtype=np.int64)
        jobs.append(Job(prompt, ids, min(WARMUP_TOKENS, max_tokens)))
    return jobs


def cooldown_jobs(count: int, warm: Sequence[Job], max_tokens: int) -> list[Job]:
    """`count` jobs with the warm-up's prompts that answer as long as measured ones may."""
    return [replace(warm[i % len(warm)], max_tokens=max_tokens) for i in range(count)]


def next_turn(job: Job, answer: str) -> Job:
    """The next question of a conversation with the model's answer before it; ids are left open."""
    prompt = job.prompt
    messages = (*prompt.messages, ("assistant", answer), ("user", prompt.later[0]))
    following = replace(prompt, messages=messages, later=prompt.later[1:])
    return replace(job, prompt=following, tokens=job.tokens[:0], turn=job.turn + 1, arrival_s=None)


def job_of(row: RequestRow) -> Job:
    """The job of a saved request, with the history that it was sent with.

    Raises:
        DataError: the row holds no prompt ids.
    """
    if not row.prompt:
        raise DataError(f"{row.key} has no prompt ids.", "Measure again with this version.")
    prompt = Prompt(row.prompt_id, (("user", ""),), row.dataset, row.category)
    return Job(prompt, np.asarray(row.prompt, dtype=np.int64), row.max_tokens)


def prompts_hash(jobs: Sequence[Job]) -> str:
    """Names what was sent, in order: ids, limits, moments, later turns. 16 hex digits."""
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(job.tokens.tobytes())
        digest.update(job.max_tokens.to_bytes(8, "little"))
        digest.update(repr((job.arrival_s, job.prompt.later)).encode())
    return digest.hexdigest()[:16]
