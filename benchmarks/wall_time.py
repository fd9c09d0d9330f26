"""RecGuide against the best fixed choice, wall time on this machine.

    python benchmarks/wall_time.py [--concurrency 1,8,32] [--repeats 5] [--data demo]

All methods serve the same prompts, interleaved within each repeat so that a drift of the machine
meets all of them alike, after a pass that is not timed: kernels are made ready for every number of
tokens that they meet for the first time, and recguide learns. Printed per load: median tokens/s of
each, and recguide's ratio to the best of {ar, linear 4/8/16/32}, median and range over the repeats.
Choosing plain AR is allowed and shown by the block shares.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

from recguide_core.bench.jobs import make_jobs
from recguide_core.bench.load import Job
from recguide_core.bench.target import ModelRenders
from recguide_core.datasets import ReadOptions, load_prompts, select
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import LoadedModel, load_model
from recguide_core.records import Request
from recguide_core.tuning.guidance import Tuned, load_tuned

RIVALS = (("ar", None), ("linear", 4), ("linear", 8), ("linear", 16), ("linear", 32))


class Contestant:
    """One method with an engine of its own, kept warm over all repeats."""

    def __init__(
        self, model: LoadedModel, name: str, block: int | None, load: int, tuned: Tuned
    ) -> None:
        self.name = name if block is None else f"{name}/{block}"
        self.engine = Engine(
            model,
            planners=[make_planner(name, block, tuned.guidance)],
            settings=EngineSettings(max_requests=load, entropy_positions=tuned.positions),
        )
        self.load = load
        self.blocks: Counter[int] = Counter()

    def serve(self, jobs: list[Job]) -> float:
        """Tokens per second over the jobs, `load` of them in flight."""
        waiting, live, tokens = list(enumerate(jobs))[::-1], 0, 0
        began = time.perf_counter()
        while waiting or live:
            while waiting and live < self.load:
                index, job = waiting.pop()
                self.engine.submit(Request(str(index), job.tokens, job.max_tokens))
                live += 1
            for event in self.engine.step():
                tokens += len(event.tokens)
                if event.block:
                    self.blocks[event.block] += 1
                live -= event.finished is not None
        return tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", default="demo")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()
    model = load_model("nld-tiny")
    tuned = load_tuned("nld-tiny", model.hash, "cpu")
    folder = os.environ.get("RECGUIDE_DATA_DIR")
    loaded = load_prompts(
        tuple(options.data.split(",")), Path(folder) if folder else None, ReadOptions()
    )
    prompts = [p for p in loaded.prompts if p.hash not in tuned.prompts]
    print(f"{len(prompts)} of {len(loaded.prompts)} prompts are not among the policy's own")
    for load in map(int, options.concurrency.split(",")):
        jobs = make_jobs(
            select(prompts, max(options.requests, 2 * load), 0),
            ModelRenders(model),
            {},
            raw=False,
            max_tokens=options.max_tokens,
            context=model.config.max_positions,
        )
        field = [Contestant(model, n, b, load, tuned) for n, b in (*RIVALS, ("recguide", None))]
        for one in field:
            one.serve(jobs)
            one.blocks.clear()
        speed = np.array([[one.serve(jobs) for one in field] for _ in range(options.repeats)])
        report(load, field, speed)


def report(load: int, field: list[Contestant], speed: np.ndarray) -> None:
    """Medians, then the ratio to the best rival repeat by repeat."""
    medians = np.median(speed, axis=0)
    best = int(medians[:-1].argmax())
    ratio = speed[:, -1] / speed[:, best]
    listing = "  ".join(f"{one.name} {m:.0f}" for one, m in zip(field, medians, strict=True))
    print(f"C = {load}: tokens/s {listing}")
    print(
        f"  recguide / {field[best].name}: {np.median(ratio):.3f} "
        f"({ratio.min():.3f} .. {ratio.max():.3f} over {len(ratio)} repeats)"
    )
    print(f"  in order: {' '.join(f'{r:.3f}' for r in ratio)}")
    total = sum(field[-1].blocks.values())
    shares = {b: f"{100 * n / total:.0f} %" for b, n in sorted(field[-1].blocks.items())}
    print(f"  recguide's widths: {shares}")


if __name__ == "__main__":
    main()
