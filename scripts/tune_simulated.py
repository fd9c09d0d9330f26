"""Find, on-policy, which fraction of Dinkelbach's rho suits each simulated method.

    python scripts/tune_simulated.py [--out tables/simulated.rho.json] [--workers 2] [--only-host]

Prints tokens/s at every fraction and writes the best ones with the rate attained there. Takes some
minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from recguide_core.policy.host import NO_HOST, HostTime
from recguide_core.simulator.rho import FILE, LOADS, SCHEMA, search_fraction, search_key
from recguide_core.simulator.settings import SimCell, SimSettings
from recguide_core.tables import read_json, write_json

GPU = "b200"
MODELS = ("nld-8b", "nld-14b")
METHODS = (
    ("recguide", "ragged"),
    ("adaptive", "ragged"),
    ("adaptive", "bucketed"),
    ("adaptive", "padded"),
)
HOSTED = (("recguide", "ragged"),)
"""Searched again with host time, which changes the balance at high load."""
HOST = HostTime(step=3.2, request=0.18)
"""Between those that the suite `paper` fits for 8B and 14B."""
WAITING = {"bucketed": 2.0}
"""Bucketed batches need more requests than places to fill."""

Job = tuple[str, str, str, HostTime, int]


def search(job: Job) -> tuple[Job, str, tuple[float, float], dict[float, float]]:
    model, method, batching, host, load = job
    waiting = WAITING.get(batching, 1.0)
    settings = SimSettings(gpu=GPU, model=model, batching=batching, waiting=waiting, host=host)
    cell = SimCell(method, None, load, batching)
    best, speeds = search_fraction(settings, cell)
    return job, search_key(settings, cell), best, speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tables") / FILE)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-host", action="store_true", help="keep the others in --out")
    options = parser.parse_args()
    plans = [(*how, NO_HOST) for how in METHODS] + [(*how, HOST) for how in HOSTED]
    jobs: list[Job] = [(m, *plan, c) for m in MODELS for plan in plans for c in LOADS]
    found: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    if options.only_host:
        jobs = [job for job in jobs if job[3] != NO_HOST]
        found = read_json(options.out)["fractions"]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for job, key, best, speeds in pool.map(search, jobs):
            line = " ".join(f"{f:g}: {tps:.0f}" for f, tps in speeds.items())
            print(
                f"{job[0]} {key} C={job[4]}: best {best[0]:g}, rate {best[1]:g} ({line})",
                flush=True,
            )
            found.setdefault(f"{GPU}/{job[0]}", {}).setdefault(key, {})[str(job[4])] = best
    write_json(options.out, {"schema": SCHEMA, "fractions": found})


if __name__ == "__main__":
    main()
