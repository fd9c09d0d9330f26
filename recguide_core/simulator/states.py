"""Shadow rounds on drawn texts: what calibration would have recorded, in one vectorised walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recguide_core.policy.branch_table import BranchTrials
from recguide_core.policy.branches import BranchRule, propose
from recguide_core.policy.value_fit import ShadowRounds
from recguide_core.records import MAX_BLOCK, BranchKind, IntArray
from recguide_core.simulator.texts import Texts

_STAY = {0: (0.55, 0.35, 0.10), 1: (0.25, 0.50, 0.25)}
_FAR = 1 << 20


@dataclass(frozen=True, slots=True)
class Walk:
    """n rounds of an exploration chain over texts.

    Attributes:
        text, at: which text, and the output position of the seed, int64 [n].
        block: the block that was committed, int64 [n]; shadow: what policy tables are fitted to.
    """

    text: IntArray
    at: IntArray
    block: IntArray
    shadow: ShadowRounds


def explore(texts: Texts, tokens: int, menu: Sequence[int], seed: int) -> Walk:
    """Walk every text for `tokens` tokens, drawing each next block near the last one."""
    blocks = np.array(sorted(menu), np.int64)
    count, rng = len(texts), np.random.default_rng(seed)
    rows = np.arange(count)
    at = np.zeros(count, np.int64)
    place = np.full(count, int(np.argmin(np.abs(blocks - 16))))
    past = np.full((3, count), np.nan, np.float32)
    before, full = np.zeros(count, np.int64), np.zeros(count, bool)
    found = []
    while (at < tokens).any():
        live = at < tokens
        left = texts.left[rows, np.minimum(at, tokens)]
        block = blocks[place]
        found.append(
            np.stack([rows, at, block, before, full, left, *past.astype(np.float64)])[:, live]
        )
        step = np.where(live, np.minimum(left, block), 0)
        at = at + step
        past = np.stack([texts.entropy[rows, np.minimum(at, tokens)], past[0], past[1]])
        before, full = block, left >= block
        place = _next_place(place, len(blocks), rng)
    text, at, block, before, full, left, e1, e2, e3 = np.concatenate(found, axis=1)
    shadow = ShadowRounds(
        dataset=texts.category[text.astype(np.int64)],
        request=text.astype(np.int64),
        accepted=np.minimum(left.astype(np.int64)[:, None], blocks),
        e1=e1.astype(np.float32),
        e2=e2.astype(np.float32),
        e3=e3.astype(np.float32),
        prev_block=before.astype(np.int64),
        prev_full=full > 0,
    )
    return Walk(text.astype(np.int64), at.astype(np.int64), block.astype(np.int64), shadow)


def _next_place(place: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """Stay or move by one (ends: up to two) steps on the menu, as calibration explores."""
    u = rng.random(len(place))
    inner = np.searchsorted(np.cumsum(_STAY[1]), u) - 1
    outer = np.searchsorted(np.cumsum(_STAY[0]), u)
    move = np.where(place == 0, outer, np.where(place == size - 1, -outer, inner))
    return np.clip(place + move, 0, size - 1)


def branch_trials(texts: Texts, walk: Walk, rule: BranchRule) -> BranchTrials:
    """Every branch that the rule proposes on the rounds of the walk, and whether it would hit."""
    drafted = walk.block > 1
    text, at, block = walk.text[drafted], walk.at[drafted], walk.block[drafted]
    left = texts.left[text, at]
    slot = np.arange(MAX_BLOCK)
    index = at[:, None] + slot
    rows = text[:, None]
    margin = np.where(
        slot < left[:, None],
        texts.margin_right[rows, index],
        np.where(
            slot == left[:, None], texts.margin_wrong[rows, index], texts.margin_after[rows, index]
        ),
    )
    margin[:, 0] = 1.0
    far = np.full(len(block), _FAR)
    some = np.zeros(margin.shape, np.int64)
    proposal = propose(margin.astype(np.float32), some, block, far, far, rule)
    accepted = np.minimum(left, block)
    end = at + accepted
    hit = proposal.parent == accepted
    fixed = texts.fixed[text, at + np.minimum(left, MAX_BLOCK - 1)] & (left < block)
    hit &= np.where(
        proposal.kind == BranchKind.CONTINUATION, texts.foreseen[text, end] & (left >= block), fixed
    )
    used = proposal.used
    return BranchTrials(
        block=np.broadcast_to(block, used.shape)[used],
        kind=proposal.kind[used],
        rank=proposal.rank[used],
        margin=proposal.margin[used],
        hit=hit[used],
    )
