"""Texts and tables of a recorded calibration trace, in which every candidate block is known.

A trace tells, at each round's start, how far the largest block would have got; between starts the
next known hard spot counts. A later round that passes an earlier one's spot overrules it: its
draft was made closer to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.calibration.traces import branch_trials, states_of
from recguide_core.errors import DataError
from recguide_core.policy.branch_table import fit_branches
from recguide_core.policy.branches import BranchRule
from recguide_core.policy.value_fit import fit
from recguide_core.records import MAX_BLOCK, IntArray
from recguide_core.simulator.core import Workload
from recguide_core.simulator.guide import Calibrated
from recguide_core.simulator.texts import FOREVER, Texts
from recguide_core.tables import Table, read_table

_BEHIND = 2 * MAX_BLOCK + 2
_UNSEEN_MARGIN = 0.25
"""Margin of wrong tokens that no recorded draft proposed: risky, as most wrong ones are."""


@dataclass(slots=True)
class _Answer:
    """Arrays of one request over its output positions, filled round by round."""

    left: dict[int, int]
    spots: set[int]
    entropy: dict[int, float]
    margins: dict[tuple[str, int], float]
    fixed: set[int]
    foreseen: set[int]
    end: int = 0


def recorded_workload(trace: Table) -> Workload:
    """One request per recorded one, as long as its recorded answer.

    Raises:
        DataError: the trace lacks rounds of its largest block.
    """
    columns = trace.columns
    answers, prompts, groups = _answers(columns)
    longest = max(answer.end for answer in answers) + _BEHIND
    shape = (len(answers), longest)
    names = ("right", "wrong", "after")
    margins = {name: np.full(shape, _UNSEEN_MARGIN, np.float32) for name in names}
    margins["right"][:] = 1.0
    left = np.full(shape, FOREVER, np.int64)
    entropy = np.zeros(shape, np.float32)
    fixed, foreseen = np.zeros(shape, bool), np.zeros(shape, bool)
    for i, answer in enumerate(answers):
        left[i] = _left(answer, longest)
        entropy[i] = _nearest(answer.entropy, longest)
        fixed[i, list(answer.fixed)] = True
        foreseen[i, list(answer.foreseen)] = True
        for (name, at), margin in answer.margins.items():
            margins[name][i, at] = margin
    forever = np.full(shape, FOREVER, np.int64)
    texts = Texts(
        category=groups,
        left=left,
        masked=forever,
        drafter=forever,
        entropy=entropy,
        margin_right=margins["right"],
        margin_wrong=margins["wrong"],
        margin_after=margins["after"],
        fixed=fixed,
        foreseen=foreseen,
    )
    tokens = np.array([answer.end + 1 for answer in answers], np.int64)
    return Workload(texts, tokens, prompts)


def recorded_tables(trace: Table, rule: BranchRule | None = None) -> Calibrated:
    """Value and branch tables fitted to the trace, as `recguide calibrate` fits them."""
    rule = rule or BranchRule()
    states = states_of(trace.columns)
    menu = states.menu.tolist()
    trials = branch_trials(trace.columns, states, rule.delta)
    return Calibrated(
        states.rounds, fit(states.rounds, menu), fit_branches(trials, menu, rule.delta), rule
    )


def read_trace(path: Path) -> Table:
    """A trace table from a file.

    Raises:
        DataError: missing or malformed.
    """
    return read_table(path, "trace")


def _answers(columns: Mapping[str, Any]) -> tuple[list[_Answer], IntArray, IntArray]:
    names = np.char.add(
        np.char.add(np.asarray(columns["data"], str), "/"), np.asarray(columns["request"], str)
    )
    block = np.asarray(columns["block_size"], np.int64)
    order = np.lexsort((block, np.asarray(columns["round"], np.int64), names))
    _, groups = np.unique(np.asarray(columns["data"], str), return_inverse=True)
    found: dict[str, list[int]] = {}
    for row in order.tolist():
        found.setdefault(str(names[row]), []).append(row)
    answers, prompts, sets = [], [], []
    for name, rows in found.items():
        first = int(columns["committed"][rows[0]])
        answer = _Answer({}, set(), {}, {}, set(), set())
        largest = [r for r in rows if block[r] == block.max()]
        if not largest:
            raise DataError(
                f"Request {name} of the trace has no round of B = {block.max()}.",
                "Every block of the menu must be tried; make it with `recguide calibrate`.",
            )
        for row in largest:
            _note_draft(answer, columns, row, first)
        for row in (r for r in rows if columns["chosen"][r]):
            _note_round(answer, columns, row, first)
        answers.append(answer)
        prompts.append(max(first, 1))
        sets.append(int(groups[rows[0]]))
    return answers, np.array(prompts, np.int64), np.array(sets, np.int64)


def _note_draft(answer: _Answer, columns: Mapping[str, Any], row: int, first: int) -> None:
    """What the largest block tells: the spot behind this start, margins, the replacement."""
    at = int(columns["committed"][row]) - first
    accepted = int(columns["accepted"][row])
    wrong = int(columns["reject_position"][row])
    answer.spots -= set(range(at + 1, at + accepted))
    answer.left[at] = accepted if wrong >= 0 else FOREVER
    if wrong >= 0:
        answer.spots.add(at + wrong)
        risky = np.asarray(columns["risky"][row]).tolist()
        if wrong in risky:
            second = int(columns["top2"][row][risky.index(wrong)])
            if second == int(columns["verdict"][row]):
                answer.fixed.add(at + wrong)
    for slot, margin in enumerate(np.asarray(columns["margin"][row]).tolist(), start=1):
        name = "right" if wrong < 0 or slot < wrong else "wrong" if slot == wrong else "after"
        answer.margins[name, at + slot] = float(margin)


def _note_round(answer: _Answer, columns: Mapping[str, Any], row: int, first: int) -> None:
    """What the committed round tells: its entropy, and the continuation behind a full block."""
    at = int(columns["committed"][row]) - first
    end = at + int(columns["accepted"][row])
    decisions = np.asarray(columns["entropy"][row])
    if len(decisions):
        answer.entropy[end] = float(decisions.mean())
    if str(columns["branch"][row]) == "hit":
        answer.foreseen.add(end)
    answer.end = max(answer.end, end)


def _left(answer: _Answer, length: int) -> IntArray:
    """Slots to the next spot at every position; the recorded value at recorded starts."""
    spots = np.array(sorted(answer.spots), np.int64)
    at = np.arange(length)
    index = np.searchsorted(spots, at, side="right")
    left = np.full(length, FOREVER, np.int64)
    inside = index < len(spots)
    left[inside] = spots[index[inside]] - at[inside]
    for start, accepted in answer.left.items():
        if accepted < FOREVER:
            left[start] = accepted
    return left


def _nearest(known: Mapping[int, float], length: int) -> np.ndarray:
    """Values at the nearest known position, float32 [length]; zeros where none is known."""
    if not known:
        return np.zeros(length, np.float32)
    places = np.array(sorted(known))
    middles = (places[1:] + places[:-1]) / 2
    values = np.array([known[p] for p in places], np.float32)
    return np.asarray(values[np.searchsorted(middles, np.arange(length))])
