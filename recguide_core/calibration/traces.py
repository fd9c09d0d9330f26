"""From trace rows to what the fits need: states, branch trials, overlap trials. No torch.

A state is one (request, round); it has a row for every block of the menu. Rounds in which any
block met an EOS are left out, as their acceptance is cut short by the text and not by the draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recguide_core.errors import DataError
from recguide_core.policy.branch_table import BranchTrials
from recguide_core.policy.branches import CORRECTIONS, BranchRule, Proposal, propose
from recguide_core.policy.tune import OverlapTrial
from recguide_core.policy.value import Reals
from recguide_core.policy.value_fit import ShadowRounds, equal_weights
from recguide_core.records import MAX_BLOCK, BoolArray, FloatArray, IntArray

_FAR = 1 << 30


@dataclass(frozen=True, slots=True)
class States:
    """Complete states of a trace, n of them, M blocks of a menu.

    Attributes:
        menu: block sizes, ascending, int64 [M].
        datasets, requests: names behind the ids of `rounds`.
        rounds: what the value table is fitted to.
        chosen: index of the committed block, int64 [n].
        line: trace row of each state and block, int64 [n, M].
        kv: committed tokens P, int64 [n].
    """

    menu: IntArray
    datasets: list[str]
    requests: list[str]
    rounds: ShadowRounds
    chosen: IntArray
    line: IntArray
    kv: IntArray

    def __len__(self) -> int:
        return len(self.rounds)

    def of_requests(self, wanted: BoolArray) -> BoolArray:
        """States whose request is marked in `wanted` [requests]."""
        return np.asarray(wanted[self.rounds.request])


def states_of(columns: Mapping[str, Any], positions: int = MAX_BLOCK) -> States:
    """Pivot a trace table.

    Args:
        columns: of a trace table (`tables.SCHEMAS["trace"]`).
        positions: most decisions that e_t averages over.

    Raises:
        DataError: no complete state, or a request's rounds have gaps.
    """
    menu = np.unique(np.asarray(columns["block_size"], np.int64))
    datasets, dataset = np.unique(np.asarray(columns["data"], str), return_inverse=True)
    requests, request = np.unique(np.asarray(columns["request"], str), return_inverse=True)
    round_ = np.asarray(columns["round"], np.int64)
    key = np.stack([dataset, request, round_], axis=1)
    keys, state = np.unique(key, axis=0, return_inverse=True)
    state = state.ravel()
    line = np.full((len(keys), len(menu)), -1, np.int64)
    line[state, np.searchsorted(menu, columns["block_size"])] = np.arange(len(state))
    whole = (line >= 0).all(axis=1)
    chosen_row = np.full(len(keys), -1, np.int64)
    rows = np.flatnonzero(columns["chosen"])
    chosen_row[state[rows]] = rows
    if not whole.any() or (chosen_row < 0).any():
        raise DataError(
            "The trace has no complete round: every block of the menu must be tried.",
            "Make it with `recguide calibrate`.",
        )
    e = _entropies(columns["entropy"], chosen_row, positions)
    block = np.asarray(columns["block_size"], np.int64)[chosen_row]
    full = np.asarray(columns["full"], bool)[chosen_row]
    past = _history(keys, e, block, full)
    accepted = np.asarray(columns["accepted"], np.int64)[line]
    clean: BoolArray = np.asarray(whole & ~np.asarray(columns["eos"], bool)[line].any(axis=1))
    if not clean.any():
        raise DataError("Every round of the trace ends at EOS.", "Use longer answers.")
    rounds = ShadowRounds(keys[:, 0], keys[:, 1], accepted, *past).take(clean)
    return States(
        menu=menu,
        datasets=datasets.tolist(),
        requests=requests.tolist(),
        rounds=rounds,
        chosen=np.searchsorted(menu, block[clean]),
        line=line[clean],
        kv=np.asarray(columns["committed"], np.int64)[chosen_row[clean]],
    )


def _entropies(lists: Sequence[Any], rows: IntArray, positions: int) -> FloatArray:
    """e_t of the committed rounds from their valid decisions."""
    return np.array(
        [np.mean(lists[r][:positions]) if len(lists[r]) else np.nan for r in rows], np.float32
    )


def _history(
    keys: IntArray, e: FloatArray, block: IntArray, full: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray, IntArray, BoolArray]:
    """e1, e2, e3, prev_block, prev_full of each state; keys are sorted by request and round."""
    n, nan = len(keys), np.float32(np.nan)
    shifted = []
    for lag in (1, 2, 3):
        source = np.maximum(np.arange(n) - lag, 0)
        same = (np.arange(n) >= lag) & (keys[:, :2] == keys[source, :2]).all(axis=1)
        known = same & (keys[source, 2] == keys[:, 2] - lag)
        if (same & ~known).any():
            raise DataError("The trace skips rounds of a request.", "Resume the calibration.")
        shifted.append((known, source))
    known, source = shifted[0]
    lagged = [np.where(k, e[s], nan).astype(np.float32) for k, s in shifted]
    e1, e2, e3 = lagged
    return e1, e2, e3, np.where(known, block[source], 0), known & full[source]


@dataclass(frozen=True, slots=True)
class DraftedRows:
    """Drafts of one block size with their outcome, r of them.

    Attributes:
        state: index into the states, int64 [r]; `block`: B.
        margin, alt: float32 and int64 [r, MAX_BLOCK]; alternatives are known where risky.
        reject, verdict: first wrong slot (-1: full) and the verifier's token there, int64 [r].
        accepted: A, int64 [r].
        reused: 1 hit, 0 miss, -1 not tried: the continuation behind a full block, int64 [r].
    """

    state: IntArray
    block: int
    margin: FloatArray
    alt: IntArray
    reject: IntArray
    verdict: IntArray
    accepted: IntArray
    reused: IntArray


def drafted_rows(columns: Mapping[str, Any], states: States, block: int) -> DraftedRows:
    """The rows of one block of the menu, in the order of the states."""
    line = states.line[:, int(np.searchsorted(states.menu, block))]
    margin = np.ones((len(line), MAX_BLOCK), np.float32)
    alt = np.full((len(line), MAX_BLOCK), -1, np.int64)
    for i, row in enumerate(line.tolist()):
        margin[i, 1:block] = columns["margin"][row]
        alt[i, columns["risky"][row]] = columns["top2"][row]
    outcome = np.asarray(columns["branch"], str)[line]
    return DraftedRows(
        state=np.arange(len(line)),
        block=block,
        margin=margin,
        alt=alt,
        reject=np.asarray(columns["reject_position"], np.int64)[line],
        verdict=np.asarray(columns["verdict"], np.int64)[line],
        accepted=np.asarray(columns["accepted"], np.int64)[line],
        reused=np.select([outcome == "hit", outcome == "miss"], [1, 0], -1),
    )


def proposals(rows: DraftedRows, rule: BranchRule) -> tuple[Proposal, BoolArray]:
    """Branches of the rule, and which of the corrections would have been reused, bool [2, r]."""
    n = len(rows.state)
    far = np.full(n, _FAR)
    proposal = propose(rows.margin, rows.alt, np.full(n, rows.block), far, far, rule)
    at = proposal.used[:CORRECTIONS] & (proposal.parent[:CORRECTIONS] == rows.reject)
    return proposal, at & (proposal.alt[:CORRECTIONS] == rows.verdict)


def branch_trials(columns: Mapping[str, Any], states: States, delta: float) -> BranchTrials:
    """Every branch that the paper's rule proposes at `delta`, and whether it was reused.

    Continuations count where they were tried: behind the block that was committed.
    """
    parts: list[tuple[npt.NDArray[Any], ...]] = []
    for j, block in enumerate(states.menu.tolist()):
        if block < 2:
            continue
        rows = drafted_rows(columns, states, block)
        proposal, hits = proposals(rows, BranchRule(delta))
        hit = np.concatenate([hits, (rows.reused == 1)[None]])
        used = proposal.used.copy()
        used[CORRECTIONS] &= states.chosen == j
        size = np.full(used.shape, block)
        kept = (size, proposal.kind, proposal.rank, proposal.margin, hit)
        parts.append(tuple(column[used] for column in kept))
    block, kind, rank, margin, hit = (np.concatenate(c) for c in zip(*parts, strict=True))
    return BranchTrials(block, kind, rank, margin.astype(np.float32), hit.astype(bool))


def overlap_trial(rows: DraftedRows, rule: BranchRule, weight: Reals) -> OverlapTrial:
    """Mean A, h and branch rows of one block under one rule.

    Where a continuation behind a full block was not tried, its mean rate stands in.
    """
    proposal, hits = proposals(rows, rule)
    full = rows.reject < 0
    tried = full & (rows.reused >= 0)
    rate = float(np.average(rows.reused[tried], weights=weight[tried])) if tried.any() else 0.0
    follows = np.where(tried, rows.reused, rate) * full * proposal.used[CORRECTIONS]
    total = weight.sum()
    return OverlapTrial(
        block=rows.block,
        delta=rule.delta,
        branches=(rule.corrections, rule.continuation),
        accepted=float(weight @ rows.accepted / total),
        reuse=float(weight @ (hits.any(axis=0) + follows) / total),
        rows=float(weight @ proposal.used.sum(axis=0) / total),
    )


def state_weights(states: States) -> Reals:
    """Weight of each state: sets, requests and rounds count alike."""
    return equal_weights(states.rounds.dataset, states.rounds.request)
