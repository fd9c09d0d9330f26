"""What a simulated model would say: per output position, how drafts made there would fare.

Lossless decoding gives every method the same text, so all of this belongs to the text and not to
the method: the same request run by two methods meets the same hard spots, margins and entropies.
Position o counts output tokens; o = 0 is the token that the prompt pass yields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.acceptance.fit import AcceptanceModel
from recguide_core.acceptance.signals import entropy_of
from recguide_core.records import MAX_BLOCK, BoolArray, FloatArray, IntArray

AFTER_WRONG_RISKY = 0.5
"""P(margin < 0.5) behind the first wrong token of a draft. A guess: no figure is published; it
decides only how often a draft that fails anyway carries a continuation branch."""
RISKY = 0.5
"""The margin that the published coverage refers to."""
FOREVER = 1 << 20


@dataclass(frozen=True, slots=True)
class Texts:
    """n texts of L output positions (the longest answer and room for drafts beyond it).

    Attributes:
        category: index into the model's categories, int64 [n].
        left: R, slots from a seed at o to the first one a draft gets wrong, int64 [n, L].
        masked: the same bound for drafts whose slot 0 was a MASK of unknown token (TiDAR), and
            `drafter` for DFlash's small drafter; both apply beside `left`, int64 [n, L].
        entropy: e_t of a round that ends at o (newest token o), float32 [n, L].
        margin_right, margin_wrong, margin_after: M of a draft token at o when the draft is right
            there, goes wrong there, or went wrong before, float32 [n, L].
        fixed: the alternative at o is the verifier's token; `foreseen`: a continuation that
            starts at o has guessed its first token, bool [n, L].
    """

    category: IntArray
    left: IntArray
    masked: IntArray
    drafter: IntArray
    entropy: FloatArray
    margin_right: FloatArray
    margin_wrong: FloatArray
    margin_after: FloatArray
    fixed: BoolArray
    foreseen: BoolArray

    def __len__(self) -> int:
        return len(self.left)


def draw_texts(model: AcceptanceModel, count: int, max_tokens: int, seed: int) -> Texts:
    """Texts of the acceptance model, categories in their shares; the same for the same seed."""
    length = max_tokens + 2 * MAX_BLOCK + 2
    quota = np.round(np.cumsum([c.share for c in model.categories]) * count).astype(np.int64)
    category = np.searchsorted(quota, np.arange(count), side="right")
    category = np.minimum(category, len(model.categories) - 1)
    rng = np.random.default_rng(seed)
    rng.shuffle(category)
    left = np.zeros((count, length), np.int64)
    risky_right, risky_wrong, fixed, foreseen = np.zeros((4, count, 1))
    for i, law in enumerate(model.categories):
        rows = category == i
        left[rows] = law.runs.sample(rng, int(rows.sum()), length)
        risky_right[rows], risky_wrong[rows] = law.risky_passed, law.risky_wrong
        fixed[rows], foreseen[rows] = law.fixed, law.foreseen
    shape = left.shape
    return Texts(
        category=category,
        left=left,
        masked=_geometric(model.mask_hazard, shape, rng),
        drafter=_geometric(model.drafter_hazard, shape, rng),
        entropy=entropy_of(left, rng.standard_normal(shape), model.noise),
        margin_right=_margins(risky_right, shape, rng, shape_of_safe=0.25),
        margin_wrong=_margins(risky_wrong, shape, rng, shape_of_safe=1.0),
        margin_after=_margins(np.full((count, 1), AFTER_WRONG_RISKY), shape, rng, 1.0),
        fixed=rng.random(shape) < fixed,
        foreseen=rng.random(shape) < foreseen,
    )


def _margins(
    risky: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator, shape_of_safe: float
) -> FloatArray:
    """Margins below 0.5 with chance `risky`, uniform there; above, 1 - 0.5 u^(1 / shape)."""
    below = rng.random(shape) < risky
    u = rng.random(shape)
    margin = np.where(below, RISKY * u, 1.0 - (1.0 - RISKY) * u ** (1.0 / shape_of_safe))
    return margin.astype(np.float32)


def _geometric(hazard: float, shape: tuple[int, ...], rng: np.random.Generator) -> IntArray:
    """First failing slot when every drafted slot fails with chance `hazard`."""
    if hazard <= 0:
        return np.full(shape, FOREVER, np.int64)
    return rng.geometric(hazard, shape)
