"""s_t and e_t: what completed verification says about the next round (Sec. 5.2).

Knows entropies of verify decisions; no tables, no block choice. The same `round_entropy` serves
the settling of a step, its kernel twin and calibration, so that a policy sees at run time what
its tables were fitted on.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from recguide_core.records import MAX_BLOCK, FloatArray, IntArray


def decision_limit(setting: str | int, menu: Iterable[int]) -> int:
    """k, the most decisions that a round's entropy averages over.

    `all` (the paper) sets no limit. A number (7 in the public notes) is cut to B - 1 of the
    smallest drafting block of the menu, so that every block size averages the same positions.
    """
    if setting == "all":
        return MAX_BLOCK
    smallest = min((b for b in menu if b > 1), default=2)
    return min(int(setting), smallest - 1)


def valid_decisions(
    width: IntArray,
    matched: IntArray,
    valid_limit: IntArray | None = None,
    k: int = MAX_BLOCK,
) -> IntArray:
    """How many verify decisions of a round count for e_t, int64 [m].

    Decision i is the verifier's token behind input i. Valid are 0 .. min(matched, B - 2): the
    matched ones and the first rejected; the bonus never counts. The one decision of an AR step
    (width 1) does. `valid_limit` caps the count of rounds that ended early: accepted minus one
    where an EOS was accepted.
    """
    count = np.minimum(np.minimum(matched + 1, np.maximum(width - 1, 1)), k)
    return count if valid_limit is None else np.minimum(count, valid_limit)


def round_entropy(
    entropy: FloatArray,
    width: IntArray,
    matched: IntArray,
    valid_limit: IntArray | None = None,
    k: int = MAX_BLOCK,
) -> FloatArray:
    """e_t of m rounds: the mean entropy of their valid decisions.

    Args:
        entropy: nats of each verify decision, MASK excluded, float32 [m, W]; W >= width.
        width, matched: B and accepted drafts (A - 1), int64 [m].
        valid_limit: see `valid_decisions`; None for no limit.
        k: most decisions to average over (`decision_limit`).

    Returns:
        float32 [m]; NaN where no decision is valid.
    """
    count = valid_decisions(width, matched, valid_limit, k)
    inside = np.arange(entropy.shape[1]) < count[:, None]
    total = np.where(inside, entropy, np.float32(0)).sum(axis=1, dtype=np.float32)
    return np.where(count > 0, total / np.maximum(count, 1).astype(np.float32), np.float32(np.nan))


def certainty(e1: npt.NDArray[np.floating], e2: npt.NDArray[np.floating]) -> FloatArray:
    """s_t = -(e_{t-1} + e_{t-2}) / 2 (Eq. 2), over those that are known; NaN without history.

    Args:
        e1, e2: entropies of the last two rounds in nats, [n]; NaN where there was none.

    Returns:
        float32 [n]; larger means more certain.
    """
    s = -0.5 * (e1 + e2)
    missing = np.isnan(s)
    if np.count_nonzero(missing):
        known1, known2 = np.where(np.isnan(e2), e1, e2), np.where(np.isnan(e1), e2, e1)
        s = -0.5 * (known1 + known2)
    return s.astype(np.float32, copy=False)
