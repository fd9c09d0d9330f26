"""Fit the acceptance model of an NLD model to the published figures.

Fitted: tilt to tau(16) and hazard to P(full | A > 16) of the shadow run, with the chain tied to
Table 1; per category, tilt and ease to its tau(16) and full-block share; margins, replacement
tokens and continuation guesses to Table 3; the noise of the entropy signal to one AUROC; quality
of TiDAR and DFlash drafts to their tau of Table 2. Everything else is predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.acceptance.published import (
    CATEGORIES,
    FULL32_GIVEN_OVER16,
    PUBLISHED,
    RISKY_PASSED,
    Published,
)
from recguide_core.acceptance.runs import RunLaw
from recguide_core.acceptance.signals import fit_noise

BLOCK = 16
"""Block size of the paper's Tables 2 and 3."""
HAZARDS = (0.0185, 0.0275)
"""Range in which a chain of runs with the transitions of Table 1 exists."""
_RISKY_LIMIT = 2


@dataclass(frozen=True, slots=True)
class CategoryLaw:
    """What differs between Math, Code and QA & IF.

    Attributes:
        risky_passed, risky_wrong: P(margin < 0.5) of a draft token that passes, and of the
            first wrong one.
        fixed: P(the replacement token is the verifier's) at a wrong token.
        foreseen: P(the continuation's first token is the bonus token).
    """

    name: str
    share: float
    runs: RunLaw
    risky_passed: float
    risky_wrong: float
    fixed: float
    foreseen: float


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """Everything a simulated request is drawn from.

    Attributes:
        overall: the law fitted to the model as a whole (Table 1, tau(16)).
        categories: their laws and shares of the requests.
        noise: sigma of log entropy beside the log of the run left (see `signals`).
        mask_hazard: chance a token that a draft whose slot 0 was a MASK (TiDAR) goes wrong early.
        drafter_hazard: the same for the small drafter of DFlash.
    """

    name: str
    overall: RunLaw
    categories: tuple[CategoryLaw, ...]
    noise: float
    mask_hazard: float
    drafter_hazard: float


def fit_model(name: str) -> AcceptanceModel:
    """Fit the model `name` (nld-8b or nld-14b)."""
    published = PUBLISHED[name]
    overall = fit_overall(published.tau16["all"])
    weights = {"math": 3 / 8, "code": 3 / 8, "qa": 2 / 8}
    categories = tuple(_fit_category(c, weights[c], overall, published) for c in CATEGORIES)
    return AcceptanceModel(
        name,
        overall,
        categories,
        noise=fit_noise(overall),
        mask_hazard=_fit_hazard(overall, published.tau_tidar / 2.0),
        drafter_hazard=_fit_hazard(overall, published.tau_dflash),
    )


def fit_overall(tau16: float) -> RunLaw:
    """Tilt to tau(16), hazard to the share of full blocks among long acceptances."""

    def at(hazard: float) -> RunLaw:
        tilt = bisect(lambda t: RunLaw.like_table1(t, hazard).tau(BLOCK) - tau16, -1.0, 1.0)
        return RunLaw.like_table1(tilt, hazard)

    def excess(hazard: float) -> float:
        law = at(hazard)
        return FULL32_GIVEN_OVER16 - law.reach(BLOCK, 32) / law.reach(BLOCK, 17)

    return at(bisect(excess, *HAZARDS))


def bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """Root of a rising function, by 40 halvings; an end of the range where there is none."""
    for _ in range(40):
        middle = 0.5 * (low + high)
        if f(middle) > 0:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


def _fit_category(name: str, share: float, overall: RunLaw, published: Published) -> CategoryLaw:
    covered, reused = published.continuation[name]
    full = covered / _few_risky(BLOCK - 1, _RISKY_LIMIT)

    def at(shift: float) -> RunLaw:
        tilt = bisect(
            lambda t: overall.eased(shift, t).tau(BLOCK) - published.tau16[name], -1.5, 1.5
        )
        return overall.eased(shift, tilt)

    runs = at(bisect(lambda shift: at(shift).reach(BLOCK, BLOCK) - full, -2.0, 2.0))
    wrong_at = runs.mismatch_at(BLOCK)
    # A wrong token at slot q has its branch if it is risky and at most one before it is.
    seen = sum(wrong_at[q] * _few_risky(q - 1, 1) for q in range(1, BLOCK))
    correction, fixed = published.correction[name]
    return CategoryLaw(
        name,
        share,
        runs,
        risky_passed=RISKY_PASSED,
        risky_wrong=min(correction / float(seen), 1.0),
        fixed=fixed / correction,
        foreseen=reused / covered,
    )


def _few_risky(positions: int, most: int) -> float:
    """P(at most `most` of so many passed positions are risky)."""
    p, total, term = RISKY_PASSED, 0.0, (1.0 - RISKY_PASSED) ** positions
    for k in range(most + 1):
        total += term
        term *= (positions - k) / (k + 1) * p / (1.0 - p)
    return total


def _fit_hazard(runs: RunLaw, accepted: float) -> float:
    """Chance a token that a worse draft ends before the run, so that its mean A is `accepted`."""
    return bisect(lambda h: accepted - worse_tau(runs, h), 0.0, 0.9)


def worse_tau(runs: RunLaw, hazard: float, block: int = BLOCK) -> float:
    """Mean accepted length when each token of a draft also fails with chance `hazard`.

    Rounds form a chain over R left: a failure at k < R leaves R - k of the run.
    """
    visits = _visits(runs.mix(), hazard, block)
    return float(runs.mix() @ np.arange(len(visits)) / visits.sum())


def _visits(mix: npt.NDArray[np.float64], hazard: float, block: int) -> npt.NDArray[np.float64]:
    """Expected rounds that start with r of a run left, per run."""
    survive = (1.0 - hazard) ** np.arange(block)
    visits = mix.copy()
    for r in range(len(mix) - 1, 1, -1):
        if visits[r] == 0.0:
            continue
        most = min(r, block)
        accept = survive[:most] * hazard
        accept[most - 1] = survive[most - 1]
        ks = np.arange(1, most + 1)
        keep = ks < r
        np.add.at(visits, r - ks[keep], visits[r] * accept[keep])
    return visits
