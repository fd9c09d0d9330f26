"""The embedded engine as a site of bench: model, jobs, one engine per cell, AR as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.jobs import (
    cooldown_jobs,
    make_jobs,
    next_turn,
    prompts_hash,
    warmup_jobs,
)
from recguide_core.bench.load import Job
from recguide_core.bench.peaks import model_size, peaks_of
from recguide_core.bench.replay import trace_jobs
from recguide_core.bench.rows import RequestRow
from recguide_core.bench.target import (
    EngineTarget,
    ModelRenders,
    Reference,
    judge,
    load_policy,
    make_clock,
)
from recguide_core.datasets import Loaded, Prompt, select
from recguide_core.datasets.benchmarks import instruction
from recguide_core.errors import DataError
from recguide_core.model.registry import LoadedModel, load_model


class EmbeddedSite:
    """Everything that the cells of a run on the embedded engine share.

    Attributes:
        jobs, warmup, cooldown: what is sent inside the window, before it, and beside its end.
        about: what the record says of model, prompts and policy.
    """

    def __init__(self, config: BenchConfig, loaded: Loaded) -> None:
        self._config = config
        self._model = self._read(config)
        needed = config.guided or config.held_out
        self._tuned = load_policy(self._model, config) if needed else None
        self._reference: Reference | None = None
        known = frozenset() if self._tuned is None else self._tuned.prompts
        pool = _held_out(loaded.prompts, known) if config.held_out else loaded.prompts
        self._peaks = None
        if config.engine == "embedded":
            make_clock(config)  # an unknown one is refused before anything runs
            self._peaks = peaks_of(config, model_size(config, self._model.config))
        renders = ModelRenders(self._model)
        raw = self._raw = config.template == "raw"
        self._renders = renders
        trace = loaded.trace
        if trace is not None:
            trace = trace.head(config.requests).within(self._model.config.max_positions)
            self.jobs: Sequence[Job] = trace_jobs(trace, pool, renders, raw=raw, seed=config.seed)
        else:
            self.jobs = make_jobs(
                select(pool, config.most_requests, config.seed),
                renders,
                {name: instruction(name, config.template) for name in loaded.datasets},
                raw=raw,
                max_tokens=config.max_tokens,
                context=self._model.config.max_positions,
            )
        most = max(config.warmup, config.cooldown)
        around = warmup_jobs(most, renders, raw=raw, max_tokens=config.max_tokens)
        self.warmup: Sequence[Job] = around[: config.warmup]
        self.cooldown: Sequence[Job] = cooldown_jobs(config.cooldown, around, config.max_tokens)
        used = {job.prompt.hash for job in self.jobs}
        self.about: dict[str, Any] = {
            "model_hash": self._model.hash,
            "prompts_hash": prompts_hash(self.jobs),
            "policy": _policy_record(self._tuned),
            "seen_by_policy": len(used & known),
            "trace": None if trace is None else trace.as_record(),
            "peaks": None if self._peaks is None else self._peaks.as_record(),
            "prefix_cache": False,
            "threads": config.threads or torch.get_num_threads(),
        }

    def _read(self, config: BenchConfig) -> LoadedModel:
        return load_model(config.model, device=config.device, dtype=config.dtype)

    def target(self, cell: Cell) -> EngineTarget:
        return EngineTarget(self._model, cell, self._config, self._tuned, self._peaks)

    def follow(self, job: Job, row: RequestRow) -> Job:
        """The conversation's next question, behind the model's answer as it stands in `row`."""
        assert self._model.tokenizer is not None, "the prompt was made with it"
        turned = next_turn(job, self._model.tokenizer.decode(row.tokens))
        messages = [{"role": role, "content": text} for role, text in turned.prompt.messages]
        tokens = np.asarray(self._renders.encode(messages, self._raw), dtype=np.int64)
        room = self._model.config.max_positions - len(tokens)
        if room < 1:
            fault = f"turn {turned.turn} has {len(tokens)} tokens, more than the model's context"
            return replace(turned, tokens=tokens, fault=fault)
        return replace(turned, tokens=tokens, max_tokens=min(turned.max_tokens, room))

    def check(self, rows: Sequence[RequestRow]) -> None:
        """Writes into each row whether its text is AR's behind the same history."""
        if self._reference is None:
            self._reference = Reference(self._model, self._config)
        judge(self._reference, rows)


def _held_out(prompts: Sequence[Prompt], known: frozenset[str]) -> list[Prompt]:
    """The prompts that the policy has not seen."""
    unseen = [prompt for prompt in prompts if prompt.hash not in known]
    if not unseen:
        raise DataError(
            "Every prompt of the data was used to make the policy.",
            "Choose other data, or leave --held-out away.",
        )
    return unseen


def _policy_record(tuned: Any) -> dict[str, Any] | None:
    if tuned is None:
        return None
    hashes = dict(tuned.guidance.hashes)
    return {"path": str(tuned.policy.path), "hashes": hashes, "notes": list(tuned.notes)}
