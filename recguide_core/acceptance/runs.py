"""The law of runs: how far a text goes between two hard spots, and what a block makes of it.

Greedy decoding without loss gives every method the same text, so what a draft can pass is a
property of the text: a run of R tokens up to and including the first one that a draft would get
wrong. A block of B accepts A = min(R, B); a full block only eats into the run, and the next round
starts with R - B of it left. So tau(B) = E[R] / E[ceil(R / B)].

Runs come in the three classes of Table 1 (R <= 8, 8 < R <= 16, R > 16) and form a Markov chain Q
over classes. Q is solved so that rounds of B = 32 show exactly the transitions of Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recguide_core.acceptance.published import TABLE1

Floats = npt.NDArray[np.float64]

LONGEST = 512
"""Runs beyond this are cut; nothing that is decoded here is longer."""
_R = np.arange(LONGEST + 1)
_EDGES = (1, 9, 17, LONGEST + 1)
_MEASURED_AT = 32
"""The block size of Table 1."""


@dataclass(frozen=True, slots=True)
class RunLaw:
    """Lengths and order of runs.

    Attributes:
        tilt: theta; within the classes below 17, P(R = r) is proportional to exp(theta r).
        hazard: chance a token that a long run ends, from its 17th token on.
        chain: Q, P(class of the next run | class of this one), float64 [3, 3].
    """

    tilt: float
    hazard: float
    chain: Floats

    @classmethod
    def like_table1(cls, tilt: float, hazard: float, table: Floats = TABLE1) -> RunLaw:
        """The law whose rounds of B = 32 have the transitions of Table 1.

        Raises:
            ValueError: no chain does it (the runs are too long for the table's escapes).
        """
        length = _lengths(tilt, hazard)
        chain = _solve_chain(length, table / table.sum(1, keepdims=True))
        return cls(tilt, hazard, chain)

    def eased(self, shift: float, tilt: float) -> RunLaw:
        """Another category: log odds of long runs raised by `shift`, its own tilt."""
        chain = self.chain * np.exp([0.0, 0.0, shift])
        return replace(self, tilt=tilt, chain=chain / chain.sum(1, keepdims=True))

    def lengths(self) -> Floats:
        """P(R = r | class), float64 [3, LONGEST + 1]."""
        return _lengths(self.tilt, self.hazard)

    def mix(self) -> Floats:
        """P(R = r) over all runs, float64 [LONGEST + 1]."""
        return np.asarray(stationary(self.chain) @ self.lengths())

    def tau(self, block: int) -> float:
        """Mean accepted length of a run of fixed-block rounds."""
        mix = self.mix()
        return float(mix @ _R / (mix @ rounds_of(_R, block)))

    def left(self, block: int) -> Floats:
        """P(R left at the start of a round) when all rounds have this block."""
        share = np.zeros(LONGEST + 1)
        mix = self.mix()
        for r in range(1, LONGEST + 1):
            share[r:0:-block] += mix[r]
        return np.asarray(share / share.sum())

    def accepted(self, history: int, block: int) -> float:
        """Mean A_B on the states that rounds of `history` visit (a shadow run)."""
        return float(self.left(history) @ np.minimum(_R, block))

    def reach(self, history: int, tokens: int) -> float:
        """P(R left >= tokens) on the states that rounds of `history` visit."""
        return float(self.left(history)[tokens:].sum())

    def mismatch_at(self, block: int) -> Floats:
        """P(first wrong draft at slot q) per round, q = 0..B-1 (0 never), float64 [B]."""
        return self.left(block)[:block]

    def transitions(self) -> Floats:
        """Table 1 of this law: intervals of A_t to A_{t+1} at B = 32, float64 [3, 3]."""
        length = self.lengths()
        inner, last = _inside(length)
        share = stationary(self.chain)
        counts = share[2] * inner
        for c in range(3):
            counts = counts + share[c] * np.outer(last[c], self.chain[c])
        return np.asarray(counts / counts.sum(1, keepdims=True))

    def sample(self, rng: np.random.Generator, texts: int, tokens: int) -> npt.NDArray[np.int64]:
        """R left at every position of sampled texts, int64 [texts, tokens].

        Texts begin anywhere in a long stream, as answers do, not at the start of a run.
        """
        total = tokens + 2 * LONGEST
        cumulative = np.cumsum(self.lengths(), axis=1)
        chain = np.cumsum(self.chain, axis=1)
        state = _draw(np.cumsum(stationary(self.chain))[None].repeat(texts, 0), rng)
        spot = np.zeros((texts, total), np.int64)
        at, rows = np.zeros(texts, np.int64), np.arange(texts)
        while (at < total).any():
            spot[rows[at < total], at[at < total]] = at[at < total]
            at = at + _draw(cumulative[state], rng)
            state = _draw(chain[state], rng)
        # The next spot behind each position, looking back from the end.
        later = np.where(spot > 0, spot, total + LONGEST)[:, ::-1]
        following = np.minimum.accumulate(later, axis=1)[:, ::-1]
        kept = slice(LONGEST, LONGEST + tokens)
        return np.asarray(following[:, kept.start + 1 : kept.stop + 1] - np.arange(total)[kept])


def rounds_of(length: npt.ArrayLike, block: int) -> npt.NDArray[np.int64]:
    """ceil(R / B): rounds that runs of these lengths take, int64."""
    return -(-np.asarray(length, np.int64) // block)


def stationary(chain: Floats) -> Floats:
    """Shares in which the chain visits its states, float64 [3]."""
    size = len(chain)
    system = np.vstack([chain.T - np.eye(size), np.ones(size)])
    target = np.append(np.zeros(size), 1.0)
    return np.asarray(np.linalg.lstsq(system, target, rcond=None)[0])


def _lengths(tilt: float, hazard: float) -> Floats:
    law = np.zeros((3, LONGEST + 1))
    for c in (0, 1):
        part = slice(_EDGES[c], _EDGES[c + 1])
        law[c, part] = np.exp(tilt * (_R[part] - _EDGES[c]))
    law[2, 17:] = hazard * (1.0 - hazard) ** (_R[17:] - 17)
    return np.asarray(law / law.sum(1, keepdims=True))


def _inside(length: Floats) -> tuple[Floats, Floats]:
    """Of a long run at B = 32: mean transitions between its own rounds [3, 3]; and of each class,
    P(interval of its last round) [3, 3]."""
    rounds = rounds_of(_R, _MEASURED_AT)
    rest = _R - _MEASURED_AT * (rounds - 1)
    interval = np.digitize(rest, (9, 17))
    inner = np.zeros((3, 3))
    inner[2, 2] = length[2] @ np.maximum(rounds - 2, 0)
    last = np.eye(3)
    for i in range(3):
        ends = length[2] * (interval == i)
        last[2, i] = ends.sum()
        inner[2, i] += ends[rounds > 1].sum()
    return inner, last


def _solve_chain(length: Floats, table: Floats) -> Floats:
    inner, last = _inside(length)
    chain = table.copy()
    # All rounds of the long interval belong to long runs, which settles their row.
    chain[2] = (table[2] * (inner[2].sum() + last[2, 2]) - inner[2]) / last[2, 2]
    for _ in range(60):
        share = stationary(chain)
        for c in (0, 1):
            stray = share[2] * last[2, c]
            chain[c] = (table[c] * (share[c] + stray) - stray * chain[2]) / share[c]
    if chain.min() < 0:
        raise ValueError(f"no chain of runs shows the table; the nearest is {chain.round(3)}")
    return chain


def _draw(cumulative: Floats, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    u = rng.random((len(cumulative), 1)) * cumulative[:, -1:]
    return np.asarray((cumulative < u).sum(1), np.int64)
