"""An OpenAI-compatible server as a site of bench, with what its `/metrics` says of speculation."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from recguide_core.bench.config import SERVER, BenchConfig, Cell
from recguide_core.bench.jobs import WARMUP_TEXTS, WARMUP_TOKENS, cooldown_jobs, next_turn
from recguide_core.bench.load import Job
from recguide_core.bench.remote import CHAT, Address, RemoteTarget, request_body, stream, usage_of
from recguide_core.bench.replay import trace_texts
from recguide_core.bench.rows import RequestRow
from recguide_core.datasets import Loaded, Prompt, select
from recguide_core.datasets.benchmarks import instruction
from recguide_core.errors import DataError
from recguide_core.metrics import ratio

_NO_TOKENS = np.empty(0, np.int64)


class ServerSite:
    """A running server; the client has no tokenizer and counts nothing that the server counts."""

    def __init__(self, config: BenchConfig, loaded: Loaded, address: Address) -> None:
        self._config, self._address = config, address
        self._model = config.model or served_model(address)
        trace = loaded.trace
        replayed: dict[str, Any] | None = None
        if trace is not None:
            trace = trace.head(config.requests)
            self.jobs: Sequence[Job]
            self.jobs, scale = trace_texts(
                trace, loaded.prompts, self._prompt_tokens, seed=config.seed
            )
            replayed = {**trace.as_record(), "scale": asdict(scale)}
        else:
            self.jobs = [
                Job(_instructed(p, config.template), _NO_TOKENS, p.max_tokens or config.max_tokens)
                for p in select(loaded.prompts, config.most_requests, config.seed)
            ]
        around = [
            Job(_warmup(number), _NO_TOKENS, min(WARMUP_TOKENS, config.max_tokens))
            for number in range(max(config.warmup, config.cooldown))
        ]
        self.warmup: Sequence[Job] = around[: config.warmup]
        self.cooldown: Sequence[Job] = cooldown_jobs(config.cooldown, around, config.max_tokens)
        text = "\n".join(f"{job.prompt.hash} {job.max_tokens} {job.arrival_s}" for job in self.jobs)
        self.about: dict[str, Any] = {
            "model_hash": f"server: {self._model}",
            "prompts_hash": hashlib.sha256(text.encode()).hexdigest()[:16],
            "server": {"base_url": address.url, "model": self._model},
            "trace": replayed,
            "prefix_cache": None,
        }

    def target(self, cell: Cell) -> ServerTarget:
        extra: dict[str, Any] = {}
        if cell.method != SERVER:
            speculation: dict[str, Any] = {"method": cell.method}
            if cell.block_size is not None:
                speculation["block_size"] = cell.block_size
            extra["speculation"] = speculation
        return ServerTarget(self._address, self._model, extra)

    def _prompt_tokens(self, text: str) -> int:
        """Prompt tokens that the server counts for a text, 0 where it tells none."""
        messages = [{"role": "user", "content": text}]
        body = request_body(self._model, messages, max_tokens=1)
        try:
            counts = [usage_of(part) for part in stream(self._address, CHAT, body)]
        except (OSError, http.client.HTTPException, ValueError) as fault:
            raise DataError(
                f"{self._address.url} does not answer a probe: {fault}.", "Check the server."
            ) from fault
        return max((int(usage.get("prompt_tokens") or 0) for usage in counts), default=0)

    def follow(self, job: Job, row: RequestRow) -> Job:
        """The conversation's next question, behind the server's answer."""
        return next_turn(job, row.answer)

    def check(self, rows: Sequence[RequestRow]) -> None:
        """The client cannot replay AR, so no row gets a verdict."""


class ServerTarget(RemoteTarget):
    """One cell's requests, and the server's own counters around the window."""

    def __init__(self, address: Address, model: str, extra: dict[str, Any]) -> None:
        super().__init__(address, model, extra)
        self._server = address
        self._before: Mapping[str, float] = {}

    def open_window(self) -> None:
        self._before = scrape(self._server)

    def window_record(self) -> dict[str, Any]:
        after = scrape(self._server)
        return {"server_metrics": speculation_of(self._before, after)}

    def host_share(self, jobs: Sequence[Job]) -> float | None:
        del jobs
        return None


def served_model(address: Address) -> str:
    """The model that the server offers first.

    Raises:
        DataError: nobody answers, or the answer lists no model.
    """
    text = address.get(f"{address.root}/models")
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{address.url} lists no model.", "Name one with --model, or check --base-url."
        ) from error


def scrape(address: Address) -> dict[str, float]:
    """Samples of `/metrics` summed over labels; empty where the server offers none."""
    try:
        text = address.get("/metrics")
    except DataError:
        return {}
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ") if "{" not in line else _labelled(line)
        try:
            value = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if not line.startswith("#") and np.isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found


def _labelled(line: str) -> tuple[str, str, str]:
    name, _, rest = line.partition("{")
    return name, "", rest.rpartition("}")[2]


def speculation_of(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float | str] | None:
    """Mean accepted length in the window as the server's own counters have it, and their names."""
    for accepted, drafts in (
        ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_drafts_total"),
        ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_drafts"),
    ):
        if drafts in after:
            more = after.get(accepted, 0.0) - before.get(accepted, 0.0)
            mean = ratio(more, after[drafts] - before.get(drafts, 0.0))
            # vLLM counts accepted drafts; the verifier's own token comes on top.
            return None if mean is None else {"accepted_length": 1.0 + mean, "source": drafts}
    gauge = "sglang:spec_accept_length"
    if after.get(gauge):
        return {"accepted_length": after[gauge], "source": gauge}
    return None


def _instructed(prompt: Prompt, template: str) -> Prompt:
    """The prompt with its benchmark's instruction around the last message."""
    around = instruction(prompt.dataset, template)
    if around == "{task}":
        return prompt
    role, text = prompt.messages[-1]
    messages = (*prompt.messages[:-1], (role, around.replace("{task}", text)))
    return replace(prompt, messages=messages)


def _warmup(number: int) -> Prompt:
    text = WARMUP_TEXTS[number % len(WARMUP_TEXTS)]
    return Prompt(f"warmup/{number}", (("user", text),), "warmup")
