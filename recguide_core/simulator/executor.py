"""The model's place in a simulation: readings of a step, made from `Texts`. No torch.

Every position has one true token; a draft token is the true one up to the draft's first failure.
So the engine judges simulated rounds with the same code, token by token, as real ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, ragged_arange
from recguide_core.records import BoolArray, IntArray, RowKind
from recguide_core.simulator.texts import Texts

MASK_ID = 1
PROMPT_ID = 5
_WRONG, _OTHER = 1, 2


def true_token(position: IntArray) -> IntArray:
    """The token of the text at a position, int64; neither MASK nor an end."""
    return 16 + 4 * (position & 1023)


class SyntheticExecutor:
    """`Executor` over texts.

    Args:
        texts: one text for each request; `prompt`: prompt tokens of each, int64 [n].
        text_in: the text index of the request that holds a slot.
    """

    def __init__(self, texts: Texts, prompt: IntArray, text_in: Callable[[int], int]) -> None:
        self.texts = texts
        self.prompt = prompt
        self.text_in = text_in

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        """Readings of all readouts of the step."""
        del needs
        rows = step.rows
        slots = rows.request.tolist()
        known = {slot: self.text_in(slot) for slot in dict.fromkeys(slots)}
        text = np.array([known[slot] for slot in slots], np.int64)
        first = np.maximum(rows.start - self.prompt[text], 0)
        drafts = rows.bidirectional
        counts = np.diff(step.read_start)
        row = np.repeat(np.arange(len(counts)), counts)
        slot = ragged_arange(counts)
        token = true_token(step.target)
        alt = token + _OTHER
        margin = np.ones(len(token), np.float32)
        entropy = np.zeros(len(token), np.float32)
        if drafts.any():
            at = np.flatnonzero(drafts[row])
            self._draft(step, at, row[at], slot[at], text, first, (token, alt, margin))
        verify = np.flatnonzero(rows.kind == RowKind.VERIFY)
        if len(verify):
            accepted = _accepted(step, verify)
            e = np.zeros(len(rows.length), np.float32)
            e[verify] = self.texts.entropy[text[verify], first[verify] + accepted]
            entropy = e[row]
        return StepReadings(token, alt, margin, margin, entropy)

    def _draft(
        self,
        step: PackedStep,
        at: IntArray,
        row: IntArray,
        slot: IntArray,
        text: IntArray,
        first: IntArray,
        out: tuple[IntArray, IntArray, np.ndarray],
    ) -> None:
        """Fill token, alt and margin at readouts `at`: right up to the draft's first failure."""
        token, alt, margin = out
        texts, rows = self.texts, step.rows
        good = texts.left[text, first]
        masked = (rows.parent >= 0) & self._position_rows(step)
        good = np.where(masked, np.minimum(good, texts.masked[text, first]), good)
        small = rows.kind == RowKind.DRAFTER
        good = np.where(small, np.minimum(good, texts.drafter[text, first]), good)
        o = first[row] + slot
        here = text[row]
        wrong_at = slot == good[row]
        unforeseen = (slot == 0) & ~texts.foreseen[here, o]
        wrong = (slot >= good[row]) | unforeseen
        token[at] += np.where(wrong, _WRONG, 0)
        alt[at] = np.where(wrong & texts.fixed[here, o], true_token(step.target[at]), alt[at])
        margin[at] = np.where(
            wrong_at,
            texts.margin_wrong[here, o],
            np.where(wrong, texts.margin_after[here, o], texts.margin_right[here, o]),
        )

    @staticmethod
    def _position_rows(step: PackedStep) -> BoolArray:
        """Branches drafted for one length among many, slot 0 a MASK (TiDAR).

        A continuation also starts with a MASK, but it assumes that everything passes, so its
        parent ends where the verify row does and no shorter sibling stands beside it.
        """
        rows = step.rows
        length = np.where(rows.parent >= 0, rows.length[rows.parent], 0)
        shorter = (rows.parent >= 0) & (rows.parent_len < length)
        masked = shorter & (rows.tokens[step.row_start[:-1]] == MASK_ID)
        layout = np.zeros(len(length), bool)
        layout[rows.parent[masked]] = True
        return np.asarray(layout[rows.parent] & (rows.parent >= 0))


def _accepted(step: PackedStep, verify: IntArray) -> IntArray:
    """A of verify rows: the seed and the draft tokens that are true up to the first that is not."""
    rows = step.rows
    width = rows.length[verify]
    most = int(width.max())
    slot = np.arange(most)
    index = np.minimum(step.row_start[verify][:, None] + slot, len(rows.tokens) - 1)
    right = rows.tokens[index] == true_token(step.positions[index])
    right[:, 0] = True
    right &= slot < width[:, None]
    return np.asarray(np.cumprod(right, axis=1).sum(1), np.int64)
