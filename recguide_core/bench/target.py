"""The embedded engine as a bench target, and AR replay with it for the lossless check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from recguide_core.bench.config import REFERENCE_BATCH, BenchConfig, Cell
from recguide_core.bench.load import Job, TokenEvent
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError
from recguide_core.model.registry import LoadedModel
from recguide_core.records import Finish, Finished, IntArray, Request

BEST_TOKENS = 8
"""Alternatives read at a place where two texts part."""
REPLAYED_STEPS = 64
"""Steps whose forwards are run again to find the host's share."""


def threads_in_use() -> int:
    """CPU threads of torch."""
    return torch.get_num_threads()


class ModelRenders:
    """Turns conversations into ids with a model's tokenizer and template."""

    def __init__(self, model: LoadedModel) -> None:
        if model.tokenizer is None:
            raise DataError(f"{model.name} has no tokenizer.", "Add tokenizer.json to its folder.")
        self._model = model
        self._tokenizer = model.tokenizer

    def encode(self, messages: Sequence[Mapping[str, Any]], raw: bool) -> list[int]:
        if raw:
            text = "\n".join(str(message["content"]) for message in messages)
        else:
            text = self._model.render(messages)
        return self._tokenizer.encode(text)


class EngineTarget:
    """One cell's engine behind the target interface."""

    def __init__(self, model: LoadedModel, cell: Cell, config: BenchConfig) -> None:
        planner = make_planner(cell.method, block=cell.block_size)
        self.engine = Engine(
            model, planners=[planner], settings=engine_settings(config, cell.concurrency)
        )

    def submit(self, request: Request) -> None:
        self.engine.submit(request)

    def step(self) -> Iterable[TokenEvent]:
        return self.engine.step()

    def now(self) -> float:
        return self.engine.clock.now()

    def open_window(self) -> None:
        """Warm-up is over: what is kept of steps from here on belongs to the window."""
        self.engine.keep_steps(REPLAYED_STEPS)

    def host_share(self) -> float | None:
        """Host's share of the kept steps; the engine must be idle."""
        return self.engine.host_share()

    @property
    def clock(self) -> str:
        return self.engine.clock.name


def engine_settings(config: BenchConfig, concurrency: int) -> EngineSettings:
    """The engine's limits for a load."""
    return EngineSettings(
        max_requests=concurrency,
        prefill_chunk=config.prefill_chunk,
        kv_tokens=config.kv_tokens or 0,
        threads=config.threads,
    )


class Reference:
    """AR's outputs, made once per prompt, and AR's best tokens behind any text."""

    def __init__(self, model: LoadedModel, config: BenchConfig) -> None:
        self._engine = Engine(
            model,
            planners=[make_planner("ar")],
            settings=engine_settings(config, REFERENCE_BATCH),
        )
        self._ignore_eos = config.ignore_eos
        self._outputs: dict[tuple[bytes, int], list[int]] = {}
        self._asked = 0

    def outputs(self, jobs: Sequence[Job]) -> list[list[int]]:
        """AR's tokens for each job."""
        missing = {_name(job): job for job in jobs if _name(job) not in self._outputs}
        names = list(missing)
        finished = self._run(
            [
                Request(self._key(), job.tokens, job.max_tokens, ignore_eos=self._ignore_eos)
                for job in missing.values()
            ]
        )
        for name, result in zip(names, finished, strict=True):
            self._outputs[name] = [int(token) for token in result.tokens]
        return [self._outputs[_name(job)] for job in jobs]

    def best_after(self, text: IntArray) -> Mapping[int, float]:
        """Log-probabilities of the best few next tokens: one causal forward over `text` [n]."""
        request = Request(self._key(), text, 1, logprobs=BEST_TOKENS)
        top = self._run([request])[0].top_logprobs
        assert top, "the engine reports logprobs when asked"
        return dict(top[0])

    def _key(self) -> str:
        self._asked += 1
        return f"reference/{self._asked}"

    def _run(self, requests: Sequence[Request]) -> list[Finished]:
        done: dict[str, Finished] = {}
        for request in requests:
            self._engine.submit(request)
        while len(done) < len(requests):
            for event in self._engine.step():
                if event.finished is not None:
                    done[event.key] = event.finished
        results = [done[request.key] for request in requests]
        failed = next((r for r in results if r.finish is Finish.ERROR), None)
        if failed is not None:
            raise DataError(f"AR itself failed: {failed.error}", "Run with --no-check to go on.")
        return results


def _name(job: Job) -> tuple[bytes, int]:
    return job.tokens.tobytes(), job.max_tokens
