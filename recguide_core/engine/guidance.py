"""What calibration and tuning learned, in the form that planners use. No torch, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import DELTA, BranchRule
from recguide_core.policy.cost import CostModel
from recguide_core.policy.value import Reals, ValueTable

PAPER_MENU = (8, 16, 32)
FULL_MENU = (1, 4, 8, 16, 32)
"""With plain AR and B = 4, which win where speculation is a loss."""
FEW = 0.01
"""Branch rows of a round up to which none are worth looking for."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """Tables and knobs of the adaptive methods.

    Attributes:
        value: V_B(s, z); `cost`: T; `branches`: P(hit), None = branches can't be priced.
        rho: rho_C by concurrency, tokens per ms; between entries it is read on a log scale.
        menu: blocks to choose from.
        rule: delta and how many branches may be proposed.
        block: block of fixed-size overlap, as tuned for C = 1.
        overlap: load -> block -> (h, branch rows of a round) to be expected of priced branches;
            a block that reuses drafts is cheaper than its two forwards. Empty = expect nothing.
        rate: load -> tokens of one request per ms that the policy attained where it was tuned; rho
            is meant for it and moves with the rate of other texts. Empty = rho itself.
        hashes: artefact name -> content hash, for the record of a run.
    """

    value: ValueTable
    cost: CostModel
    rho: Mapping[int, float]
    branches: BranchTable | None = None
    menu: Sequence[int] = FULL_MENU
    rule: BranchRule = field(default_factory=lambda: BranchRule(DELTA))
    block: int = 16
    overlap: Mapping[int, Mapping[int, tuple[float, float]]] = field(default_factory=dict)
    rate: Mapping[int, float] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    def rho_at(self, load: int) -> float:
        """rho_C, interpolated over log C and held constant outside the tuned range."""
        return _read(self.rho, load)

    def rate_at(self, load: int) -> float:
        """Rate that rho_C was tuned at, tokens of one request per ms; read like rho."""
        return _read(self.rate or self.rho, load)

    def overlap_at(self, load: int) -> tuple[Reals, Reals]:
        """h and branch rows of each block of `value.menu`, read on a log scale of the load."""
        blocks = self.value.menu.tolist()
        if not self.overlap:
            return np.zeros(len(blocks)), np.zeros(len(blocks))
        loads = sorted(self.overlap)
        logs, at = np.log(loads), np.log(max(load, 1))
        known = [[self.overlap[c].get(b, (0.0, 0.0)) for b in blocks] for c in loads]
        grid = np.array(known, np.float64).reshape(len(loads), -1)
        read = np.array([np.interp(at, logs, column) for column in grid.T])
        return read[0::2], read[1::2]

    def expects_branches(self, load: int) -> bool:
        """Whether more than `FEW` branch rows of a round are to be expected at this load."""
        return bool(self.overlap_at(load)[1].max() > FEW)


def _read(at: Mapping[int, float], load: int) -> float:
    loads = sorted(at)
    logs = np.log([max(c, 1) for c in loads])
    return float(np.interp(np.log(max(load, 1)), logs, [at[c] for c in loads]))
