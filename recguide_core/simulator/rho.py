"""rho_C of a simulated method and the rate it is meant for, as fractions of Dinkelbach's rho.

Both were found on-policy once and ship.

Dinkelbach's rho answers "which choices are best if states come as they come". On a text they do
not: a hard stretch stays until its tokens are through, whatever the block, so at low load that rho
is several times too large (it buys plain AR steps that get nowhere). The search runs a method at
a few fractions of it and keeps the fastest; other GPUs, host times and menus use the fractions
found for `REFERENCE` with their own Dinkelbach rho.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from recguide_core.errors import DataError
from recguide_core.policy.host import NO_HOST, HostedCost
from recguide_core.simulator.guide import first_rho
from recguide_core.simulator.prices import priced
from recguide_core.tables import read_json
from recguide_core.tables.shipped import shipped_folder

if TYPE_CHECKING:
    from recguide_core.simulator.settings import SimCell, SimSettings

SCHEMA = "recguide.simulated-rho/2"
FILE = "simulated.rho.json"
REFERENCE = "b200/nld-8b"
FRACTIONS = (0.15, 0.3, 0.5, 0.7, 1.0)
LOADS = (1, 8, 32, 128)
SEARCH_SEED = 77
"""Texts of the search: neither those of calibration nor of a workload with a small seed."""


def rho_for(settings: SimSettings, cell: SimCell) -> tuple[float, float]:
    """rho of a cell and the rate that it attained in the search, tokens of one request per ms: the
    shipped fractions, read on a log scale of C, of its Dinkelbach rho."""
    at = fractions(f"{settings.gpu}/{settings.model}", search_key(settings, cell))
    loads = sorted(at)
    where, logs = np.log(cell.concurrency), np.log(loads)
    rho, rate = (float(np.interp(where, logs, [at[c][i] for c in loads])) for i in (0, 1))
    start = dinkelbach_rho(settings, cell.concurrency)
    return rho * start, rate * start


def search_key(settings: SimSettings, cell: SimCell) -> str:
    """`<method>+<batching>`, and `+host` where steps cost host time: there the best fractions at
    high load are smaller, since every extra step of a request costs its share of the host."""
    host = "" if settings.host == NO_HOST else "+host"
    return f"{cell.method}+{cell.batching}{host}"


def dinkelbach_rho(settings: SimSettings, load: int) -> float:
    """rho for the states of calibration at the settings' prices."""
    from recguide_core.simulator.run import learned

    prices = priced(settings.gpu, settings.model)
    cost = HostedCost(prices.cost, settings.host)
    kv = (settings.prompt_tokens or settings.context) + settings.max_tokens / 2
    return first_rho(learned(settings.model, settings.menu, settings.traces), cost, (load,), kv)[
        load
    ]


def fractions(place: str, method: str) -> Mapping[int, tuple[float, float]]:
    """Shipped (rho, rate) fractions by load of a `search_key`; those without host time where there
    are none with it, and those of the reference where the place has none of its own.

    Raises:
        DataError: the file knows no such method.
    """
    known = _shipped()
    for key in (method, method.removesuffix("+host")):
        for name in (place, REFERENCE):
            if key in known.get(name, {}):
                return known[name][key]
    raise DataError(f"{FILE} has no fraction for {method}.", "Run scripts/tune_simulated.py.")


@cache
def _shipped() -> dict[str, dict[str, dict[int, tuple[float, float]]]]:
    raw = read_json(shipped_folder() / FILE)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise DataError(f"{FILE} is not a {SCHEMA} file.", "Run scripts/tune_simulated.py.")
    return {
        place: {
            m: {int(c): (float(rho), float(rate)) for c, (rho, rate) in at.items()}
            for m, at in methods.items()
        }
        for place, methods in raw["fractions"].items()
    }


def search_fraction(
    settings: SimSettings, cell: SimCell
) -> tuple[tuple[float, float], dict[float, float]]:
    """The fraction of Dinkelbach's rho at which the method is fastest, the rate there as a fraction
    of the same, and tokens/s of each. The policy does not learn meanwhile."""
    from recguide_core.simulator.run import planner_of, simulate_cell

    trial = replace(settings, seed=SEARCH_SEED, requests=None, rate=None, ramp=None)
    start = dinkelbach_rho(trial, cell.concurrency)
    count = max(96, 4 * cell.concurrency)
    speeds = {}
    for fraction in FRACTIONS:
        planner = planner_of(trial, cell, fraction * start, learning=False)
        speeds[fraction] = simulate_cell(trial, cell, planner, count).timeline.steady_tps
    best = max(speeds, key=lambda f: speeds[f])
    rate = 1e-3 * speeds[best] / cell.concurrency
    return (best, round(rate / start, 4)), speeds
