"""The model's place in a tuning run: readings of a step, taken from recordings. No torch.

Exact for every draft, check and AR step of a recorded block size, and for every branch that is
reused: what lies before it is the text. A branch whose hypothesis fails gets the readings of the
text as well, and nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recguide_core.calibration.recording import CHECKS, DRAFTED, FREE, Recording, by_prompt
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
                free = int(tokens[0]) == self.mask_id
                _draft(held, here, len(tokens), FREE if free else DRAFTED, at, out)
        return out


def _check(held: Recording, here: int, tokens: IntArray, at: int, out: StepReadings) -> None:
    """Answers to a verify row: to the recorded draft that begins with its tokens."""
    width = len(tokens)
    for j, size in enumerate(held.blocks.tolist()):
        for draft, check, entropy in CHECKS if size >= width else ():
            # Decision 0 answers the seed alone, whatever was drafted.
            if np.array_equal(getattr(held, draft)[here, j, 1:width], tokens[1:]):
                out.token[at : at + width] = getattr(held, check)[here, j, :width]
                out.entropy[at : at + width] = getattr(held, entropy)[here, j, :width]
                return
    raise AssertionError("only recorded blocks are replayed")


def _draft(
    held: Recording, here: int, width: int, grids: Sequence[str], at: int, out: StepReadings
) -> None:
    j = int(np.searchsorted(held.blocks, width))
    assert j < len(held.blocks) and held.blocks[j] == width, "only recorded blocks are replayed"
    for name, grid in zip(("token", "alt", "margin", "confidence"), grids, strict=True):
        getattr(out, name)[at : at + width] = getattr(held, grid)[here, j, :width]
