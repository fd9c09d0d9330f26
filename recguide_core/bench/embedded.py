"""The embedded engine as a site of bench: model, jobs, one engine per cell, AR as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.jobs import make_jobs, prompts_hash, warmup_jobs
from recguide_core.bench.load import Job
from recguide_core.bench.lossless import classify
from recguide_core.bench.rows import RequestRow
from recguide_core.bench.target import (
    EngineTarget,
    ModelRenders,
    Reference,
    load_policy,
    threads_in_use,
)
from recguide_core.datasets import Loaded, Prompt, select
from recguide_core.datasets.benchmarks import instruction
from recguide_core.errors import DataError
from recguide_core.model.registry import load_model


class EmbeddedSite:
    """Everything that the cells of a run on the embedded engine share.

    Attributes:
        jobs, warmup: what is sent inside and before the window.
        about: what the record says of model, prompts and policy.
    """

    def __init__(self, config: BenchConfig, loaded: Loaded) -> None:
        self._config = config
        self._model = load_model(config.model, device=config.device, dtype=config.dtype)
        needed = config.guided or config.held_out
        self._tuned = load_policy(self._model, config) if needed else None
        self._reference: Reference | None = None
        known = frozenset() if self._tuned is None else self._tuned.prompts
        pool = _held_out(loaded.prompts, known) if config.held_out else loaded.prompts
        renders = ModelRenders(self._model)
        raw = config.template == "raw"
        self.jobs: Sequence[Job] = make_jobs(
            select(pool, config.most_requests, config.seed),
            renders,
            {name: instruction(name, config.template) for name in loaded.datasets},
            raw=raw,
            max_tokens=config.max_tokens,
            context=self._model.config.max_positions,
        )
        self.warmup: Sequence[Job] = warmup_jobs(
            config.warmup, renders, raw=raw, max_tokens=config.max_tokens
        )
        used = {job.prompt.hash for job in self.jobs}
        self.about: dict[str, Any] = {
            "model_hash": self._model.hash,
            "prompts_hash": prompts_hash(self.jobs),
            "policy": _policy_record(self._tuned),
            "seen_by_policy": len(used & known),
            "prefix_cache": False,
            "threads": config.threads or threads_in_use(),
        }

    def target(self, cell: Cell) -> EngineTarget:
        return EngineTarget(self._model, cell, self._config, self._tuned)

    def check(self, jobs: Sequence[Job], rows: Sequence[RequestRow]) -> None:
        """Writes into each row whether its text is AR's."""
        if self._reference is None:
            self._reference = Reference(self._model, self._config)
        outputs = self._reference.outputs(jobs)
        best_after = self._reference.best_after
        for row in rows:
            if row.ok:
                job = jobs[row.index]
                verdict = classify(job.tokens, outputs[row.index], row.tokens, best_after)
                row.lossless, row.evidence = verdict.kind, verdict.record()


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
