"""Find, on-policy, which fraction of Dinkelbach's rho suits each simulated method.

    python scripts/tune_simulated.py [--out tables/simulated.rho.json] [--workers 2]

Prints tokens/s at every fraction and writes the best ones. Takes some minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from recguide_core.simulator.rho import FILE, LOADS, SCHEMA, search_fraction
from recguide_core.simulator.settings import SimCell, SimSettings
from recguide_core.tables import write_json

GPU = "b200"
MODELS = ("nld-8b", "nld-14b")
METHODS = (
    ("recguide", "ragged"),
    ("adaptive", "ragged"),
    ("adaptive", "bucketed"),
    ("adaptive", "padded"),
)
WAITING = {"bucketed": 2.0}
"""Bucketed batches need more requests than places to fill."""

Job = tuple[str, str, str, int]


def search(job: Job) -> tuple[Job, float, dict[float, float]]:
    model, method, batching, load = job
    settings = SimSettings(
        gpu=GPU, model=model, batching=batching, waiting=WAITING.get(batching, 1.0), workers=1
    )
    best, speeds = search_fraction(settings, SimCell(method, None, load, batching))
    return job, best, speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tables") / FILE)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    jobs: list[Job] = [(m, *how, c) for m in MODELS for how in METHODS for c in LOADS]
    found: dict[str, dict[str, dict[str, float]]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for (model, method, batching, load), best, speeds in pool.map(search, jobs):
            line = " ".join(f"{f:g}: {tps:.0f}" for f, tps in speeds.items())
            print(f"{model} {method}+{batching} C={load}: best {best:g} ({line})", flush=True)
            place = found.setdefault(f"{GPU}/{model}", {})
            place.setdefault(f"{method}+{batching}", {})[str(load)] = best
    write_json(options.out, {"schema": SCHEMA, "fractions": found})


if __name__ == "__main__":
    main()
