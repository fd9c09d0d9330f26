"""The model's place in a tuning run: readings of a step, taken from recordings. No torch.

Exact for every draft, check and AR step of a recorded block size, and for every branch that is
reused, since a reused block equals a fresh draft. One thing is not recorded: the first token of a
continuation whose size differs from the block before it; it is taken to be right wherever that of
equal size was, or where the block was cut short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recguide_core.calibration.recording import Recording, by_prompt
from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.records import IntArray, RowKind


class ReplayExecutor:
    """`Executor` over recordings; prompts must come in one chunk.

    Args:
        recordings: texts of all prompts that will be sent; mask_id: as the engine writes it.
    """

    def __init__(self, recordings: Sequence[Recording], mask_id: int) -> None:
        self.mask_id = mask_id
        self._by_prompt = by_prompt(recordings)
        self._held: dict[int, Recording] = {}

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        """Readings of all readouts of the step."""
        del needs
        total = len(step.readout)
        out = StepReadings(
            token=np.zeros(total, np.int64),
            alt=np.full(total, -1, np.int64),
            confidence=np.ones(total, np.float32),
            margin=np.ones(total, np.float32),
            entropy=np.zeros(total, np.float32),
        )
        rows = step.rows
        for row, kind in enumerate(rows.kind.tolist()):
            slot, at = int(rows.request[row]), int(step.read_start[row])
            tokens = rows.tokens[step.row_start[row] : step.row_start[row + 1]]
            if kind == RowKind.PREFILL:
                held = self._held[slot] = self._by_prompt[tokens.tobytes()]
                out.token[at] = held.text[0]
                continue
            held = self._held[slot]
            here = int(rows.start[row]) - len(held.prompt)
            if kind == RowKind.VERIFY:
                _check(held, here, tokens, at, out)
            elif here < held.positions:
                _draft(held, here, len(tokens), at, out)
                if tokens[0] == self.mask_id:
                    parent = int(rows.parent[row])
                    first = step.row_start[parent]
                    before = rows.tokens[first : step.row_start[parent + 1]]
                    out.token[at] = _follow(held, here, before)
        return out


def _block(held: Recording, here: int, tokens: IntArray) -> int:
    """Index of the recorded block whose draft begins with `tokens`, -1 for none."""
    for j, size in enumerate(held.blocks.tolist()):
        if size >= len(tokens) and np.array_equal(held.draft[here, j, : len(tokens)], tokens):
            return j
    return -1


def _check(held: Recording, here: int, tokens: IntArray, at: int, out: StepReadings) -> None:
    width = len(tokens)
    # Decision 0 answers the seed alone, whatever was drafted.
    j = 0 if width == 1 else _block(held, here, tokens)
    assert j >= 0, "only recorded blocks are replayed"
    out.token[at : at + width] = held.check[here, j, :width]
    out.entropy[at : at + width] = held.entropy[here, j, :width]


def _draft(held: Recording, here: int, width: int, at: int, out: StepReadings) -> None:
    j = int(np.searchsorted(held.blocks, width))
    assert j < len(held.blocks) and held.blocks[j] == width, "only recorded blocks are replayed"
    for name in ("alt", "margin", "confidence"):
        getattr(out, name)[at : at + width] = getattr(held, name)[here, j, :width]
    out.token[at : at + width] = held.draft[here, j, :width]


def _follow(held: Recording, here: int, before: IntArray) -> int:
    """What a continuation at `here` predicts first, the block `before` it having passed."""
    begun, bonus = here - len(before), int(held.text[here])
    j = _block(held, begun, before)
    if j < 0 or held.blocks[j] != len(before):
        return bonus
    right = held.follow[begun, j] == held.check[begun, j, len(before) - 1]
    return bonus if right else -1
