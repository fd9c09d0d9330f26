"""The embedded engine as a bench target, and AR replay with it for the lossless check."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from recguide_core.bench.bits import ALTERNATIVES, digests
from recguide_core.bench.config import REFERENCE_BATCH, BenchConfig, Cell
from recguide_core.bench.floor import Peaks, StepMeans, floor_of
from recguide_core.bench.jobs import job_of
from recguide_core.bench.load import Job, TokenEvent
from recguide_core.bench.lossless import classify, first_difference
from recguide_core.bench.observe import DraftQuality
from recguide_core.bench.peaks import element_size, model_size
from recguide_core.bench.rows import RequestRow
from recguide_core.engine import host_share, one_token_runner
from recguide_core.engine.clock import Clock, WallClock
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import NEEDS_GUIDANCE
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError
from recguide_core.inventory import cpu_name, short_gpu_name
from recguide_core.metrics import ratio
from recguide_core.model.registry import LoadedModel
from recguide_core.records import Finish, Finished, IntArray, Request
from recguide_core.simulator.prices import named_clock
from recguide_core.tuning.guidance import Tuned, find, load_tuned

BEST_TOKENS = 8
"""Alternatives read at a place where two texts part."""


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

    def __init__(
        self,
        model: LoadedModel,
        cell: Cell,
        config: BenchConfig,
        tuned: Tuned | None = None,
        peaks: Peaks | None = None,
    ) -> None:
        guided = tuned if cell.method in NEEDS_GUIDANCE else None
        planner = make_planner(
            cell.method,
            block=cell.block_size,
            guidance=None if guided is None else guided.guidance,
            batching=config.batching,
        )
        self._config = config
        self._emitted, self._idle = 0, 0.0
        self._loads: list[int] = []
        self._usual_load = 0
        # A second model's forwards are no part of the target's floor.
        self._peaks = None if cell.method == "dflash" else peaks
        settings = engine_settings(config, cell.concurrency)
        if guided is not None:
            settings = replace(settings, entropy_positions=guided.positions)
        self.engine = Engine(model, planners=[planner], settings=settings, clock=make_clock(config))

    def submit(self, request: Request, job: Job) -> None:
        del job
        self.engine.submit(request)

    def step(self) -> Iterable[TokenEvent]:
        self._loads.append(self.engine.load)
        events = self.engine.step()
        self._emitted += sum(len(event.tokens) for event in events)
        return events

    def now(self) -> float:
        return self.engine.clock.now()

    def wait_until(self, moment: float) -> None:
        began = self.now()
        self.engine.clock.wait_until(moment)
        self._idle += self.now() - began

    def open_window(self) -> None:
        """Warm-up is over: what is counted from here on belongs to the window."""
        self.drafts = DraftQuality()
        self.engine.observers = [self.drafts]
        self._before = replace(self.engine.counters)
        self._opened = self.now()
        self._emitted, self._idle = 0, 0.0
        self._loads.clear()

    def window_record(self) -> dict[str, Any]:
        """What the engine counted since the window opened; times are of the run's clock."""
        counters, before = self.engine.counters, self._before
        self._usual_load = round(statistics.median(self._loads)) if self._loads else 0
        steps = counters.steps - before.steps
        tokens = counters.query_tokens - before.query_tokens
        # Without arrivals there are no steps.
        seconds = self.now() - self._opened - self._idle
        planned = counters.plan_seconds - before.plan_seconds
        return {
            "steps": steps,
            "step_ms": None if not steps else 1e3 * seconds / steps,
            # On a virtual clock the host's time is a parameter; this machine's says nothing.
            "plan_ms": 1e3 * planned / steps if steps and self.clock == "wall" else None,
            "query_tokens_per_forward": ratio(tokens, steps),
            "floor": self._floor(steps, tokens, seconds),
            "drafts": self.drafts.record(),
        }

    def _floor(self, steps: int, tokens: int, seconds: float) -> dict[str, Any] | None:
        """The least time of the window's mean step; None where nobody knows the device."""
        if self._peaks is None or not steps or not seconds:
            return None
        kv = self.engine.counters.kv_tokens - self._before.kv_tokens
        mean = StepMeans(tokens / steps, kv / steps, self._emitted / steps, 1e3 * seconds / steps)
        size = model_size(self._config, self.engine.model.config)
        return floor_of(size, element_size(self._config), mean, self._peaks)

    def host_share(self, jobs: Sequence[Job]) -> float | None:
        """Host's share of a step on the wall's clock, at the median load of the window's steps.

        The bitwise runner computes deciding tokens outside its forwards, so it has none.
        """
        if self.clock != "wall" or self._config.bitwise or not self._usual_load:
            return None
        ignore_eos = self._config.ignore_eos
        requests = (
            Request(f"host/{number}", job.tokens, job.max_tokens, ignore_eos=ignore_eos)
            for number, job in enumerate(cycle([job for job in jobs if job.fault is None]))
        )
        return host_share.measure(
            self.engine, requests, self._usual_load, host_share.STEPS, host_share.SECONDS
        )

    @property
    def clock(self) -> str:
        return self.engine.clock.name


def make_clock(config: BenchConfig) -> Clock:
    """The wall's clock, or a virtual one by name."""
    if config.clock == "wall":
        return WallClock()
    return named_clock(config.clock, padded=config.batching == "padded")


def device_name(device: str) -> str:
    """How tables name the device that the model runs on."""
    if device.startswith("cuda"):
        return short_gpu_name(torch.cuda.get_device_name(device))
    return f"cpu: {cpu_name()}"


def load_policy(model: LoadedModel, config: BenchConfig) -> Tuned:
    """The policy of the adaptive methods, for this device or for the clock that is charged."""
    folder = Path(config.tables) if config.tables else None
    path = Path(config.policy) if config.policy else None
    if path is None and config.clock != "wall":
        path = find(config.clock.replace("/", "-"), "policy", folder)
    device = device_name(config.device)
    return load_tuned(
        model.name,
        model.hash,
        device,
        policy=path,
        folder=folder,
        force=config.force,
        engine=config.engine,
    )


def engine_settings(config: BenchConfig, concurrency: int) -> EngineSettings:
    """The engine's limits for a load."""
    return EngineSettings(
        max_requests=concurrency,
        prefill_chunk=config.prefill_chunk,
        kv_tokens=config.kv_tokens or 0,
        threads=config.threads,
        attention_backend=one_token_runner.NAME if config.bitwise else config.attention_backend,
        batching=config.batching,
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
        self._logprobs = ALTERNATIVES if config.bitwise else None
        self._outputs: dict[tuple[bytes, int], list[int]] = {}
        self._bits: dict[tuple[bytes, int], list[int]] = {}
        self._asked = 0

    def outputs(self, jobs: Sequence[Job]) -> list[list[int]]:
        """AR's tokens for each job."""
        missing = {_name(job): job for job in jobs if _name(job) not in self._outputs}
        names = list(missing)
        finished = self._run(
            [
                Request(
                    self._key(),
                    job.tokens,
                    job.max_tokens,
                    ignore_eos=self._ignore_eos,
                    logprobs=self._logprobs,
                )
                for job in missing.values()
            ]
        )
        for name, result in zip(names, finished, strict=True):
            self._outputs[name] = [int(token) for token in result.tokens]
            self._bits[name] = digests(result)
        return [self._outputs[_name(job)] for job in jobs]

    def bits(self, job: Job) -> list[int]:
        """Digests of AR's decisions for a job whose output was made; empty unless bitwise."""
        return self._bits[_name(job)]

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


def judge(
    reference: Reference,
    rows: Sequence[RequestRow],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes into each finished row whether its text is AR's behind the same prompt and, where the
    run kept them, whether the decisions are AR's bit for bit.

    Args:
        progress: told how many outputs of how many are done.
    """
    good = [row for row in rows if row.ok]
    jobs = [job_of(row) for row in good]
    texts = reference.outputs(jobs)
    for done, (row, job, text) in enumerate(zip(good, jobs, texts, strict=True), start=1):
        verdict = classify(job.tokens, text, row.tokens, reference.best_after)
        row.lossless, row.evidence = verdict.kind, verdict.record()
        if row.bits:
            place = first_difference(reference.bits(job), row.bits)
            row.bits_differ = -1 if place is None else place
        if progress is not None:
            progress(done, len(good))


def _name(job: Job) -> tuple[bytes, int]:
    return job.tokens.tobytes(), job.max_tokens
