"""What priced branches bring at a load: h and branch rows of each block, from a trace. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from recguide_core.calibration.traces import DraftedRows, States, drafted_rows, proposals
from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import CORRECTIONS, BranchRule, Proposal
from recguide_core.policy.cost import CostModel
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.pricing import worthwhile
from recguide_core.policy.tune import OverlapTrial
from recguide_core.policy.value import Reals
from recguide_core.records import BoolArray, IntArray

_ROWS = 1024
"""Drafts that are priced, drawn from the trace: enough for a mean, few enough to be quick."""


def priced_overlap(
    columns: Mapping[str, Any],
    states: States,
    weight: Reals,
    rule: BranchRule,
    table: BranchTable,
    model: CostModel,
    load: int,
    kv: float,
) -> dict[int, OverlapTrial]:
    """For each drafting block, the overlap that pricing leaves when `load` requests verify it.

    Rounds are drawn at random into batches of `load`, and each batch's branches are priced as the
    planner would.
    """
    prices = PackedPrices(model)
    out = {}
    for block in states.menu[states.menu > 1].tolist():
        rows = drafted_rows(columns, states, block)
        proposal, hits = proposals(rows, rule)
        order = np.random.default_rng(0).permutation(len(states))
        order = order[: max(_ROWS // load, 1) * load]
        used = np.zeros(proposal.used.shape, bool)
        for batch in np.array_split(order, max(len(order) // load, 1)):
            used[:, batch] = _priced(proposal, batch, block, table, prices, kv)
        out[block] = _trial(rows, rule, used, hits, order, weight)
    return out


def _priced(
    proposal: Proposal,
    batch: IntArray,
    block: int,
    table: BranchTable,
    prices: PackedPrices,
    kv: float,
) -> BoolArray:
    grids = {name: getattr(proposal, name)[:, batch] for name in _GRIDS}
    part = replace(proposal, risky=proposal.risky[batch], **grids)
    n = len(batch)
    return worthwhile(part, np.full(n, block), table, prices, n, n * block, int(n * kv)).used


_GRIDS = ("parent", "alt", "block", "margin", "used")


def _trial(
    rows: DraftedRows,
    rule: BranchRule,
    used: BoolArray,
    hits: BoolArray,
    order: IntArray,
    weight: Reals,
) -> OverlapTrial:
    full = rows.reject < 0
    tried = full & (rows.reused >= 0)
    rate = float(np.average(rows.reused[tried], weights=weight[tried])) if tried.any() else 0.0
    follows = np.where(tried, rows.reused, rate) * full * used[CORRECTIONS]
    reuse = (hits & used[:CORRECTIONS]).any(axis=0) + follows
    w = weight[order] / weight[order].sum()
    return OverlapTrial(
        block=rows.block,
        delta=rule.delta,
        branches=(rule.corrections, rule.continuation),
        accepted=float(w @ rows.accepted[order]),
        reuse=float(w @ reuse[order]),
        rows=float(w @ used.sum(axis=0)[order]),
    )


def round_prices(
    trials: Mapping[int, OverlapTrial],
    serial: Reals,
    menu: IntArray,
    model: CostModel,
    load: int,
    kv: float,
) -> Reals:
    """T of a round of each block in ms, with the branches that pay, float64 [menu].

    `serial` is T_C(B); where no branch pays, the two are the same.
    """
    out = serial.copy()
    for j, block in enumerate(menu.tolist()):
        if block in trials and trials[block].rows > 0:
            plain = replace(trials[block], reuse=0.0, rows=0.0).ms(model, load, kv)
            out[j] = serial[j] + trials[block].ms(model, load, kv) - plain
    return out
