"""Methods as planner objects: which rows a request gets. No torch, no clock.

A planner sees the `RequestTable` and decides for a whole batch at once; the engine loop runs any
of them unchanged.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recguide_core.errors import UsageError, nearest
from recguide_core.policy.branches import Proposal
from recguide_core.records import MAX_BLOCK, Act, BoolArray, IntArray, Plan, RequestTable

RECIPE = ((4, 32), (32, 16))
RECIPE_ELSE = 8
"""The published concurrency-specific block: 32 up to C = 4, 16 up to 32, 8 above."""


class Planner(Protocol):
    """Decides a step for the requests in `who`.

    Attributes:
        name: the method, as `--methods` spells it.
        block_size: its fixed B, or None when it chooses.
        max_in_flight: most tokens that it may give one request in one forward.
        first_draft: B of the draft made beside the last prompt chunk, 0 for none.
    """

    name: str
    block_size: int | None
    max_in_flight: int
    first_draft: int

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        """Acts of the requests in slots `who` [n] at load C."""


def check_block(block: int) -> int:
    """Validate a block size.

    Raises:
        UsageError: outside 1..MAX_BLOCK.
    """
    if not 1 <= block <= MAX_BLOCK:
        raise UsageError(
            f"Block size {block} is out of range.", f"Choose a block size from 1 to {MAX_BLOCK}."
        )
    return block


def recipe_block(load: int) -> int:
    """Block size of the published serving recipe at concurrency `load`."""
    return next((block for bound, block in RECIPE if load <= bound), RECIPE_ELSE)


def draft_or_verify(plan: Plan, table: RequestTable, block: IntArray) -> None:
    """Fill a plan with the linear round: verify what is drafted, else draft `block` [n].

    A block of 1 has nothing to draft: that round is one plain AR step.
    """
    who = plan.who
    ready = table.has_draft.take(who)
    plan.block = np.where(ready, table.draft_block.take(who), block)
    np.minimum(plan.block, table.room.take(who), out=plan.block)
    plan.act = _acts(plan.block, ready)


def planned(who: IntArray, block: IntArray, ready: BoolArray) -> Plan:
    """The linear round with its blocks settled: B to draft, or the width of what is drafted.

    Args:
        block: int64 [n]; ready: a draft waits, bool [n].
    """
    none = np.empty((len(who), 0), np.int64)
    return Plan(who, _acts(block, ready), block, none, none, none, none)


def _acts(block: IntArray, ready: BoolArray) -> IntArray:
    return np.asarray((ready | (block == 1)) + np.int64(Act.DRAFT))


def place_branches(plan: Plan, entry: IntArray, proposal: Proposal) -> None:
    """Write the proposed branches of the entries [m] into a plan without any."""
    if np.count_nonzero(proposal.used):
        grids = proposal.placed(entry, len(plan.who))
        plan.branch_kind, plan.branch_parent, plan.branch_alt, plan.branch_block = grids


class ArPlanner:
    """Plain autoregressive decoding: one causal token a forward."""

    name = "ar"
    block_size: int | None = None
    max_in_flight = 1
    first_draft = 0

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        del table, load
        plan = Plan.empty(who)
        plan.act[:] = Act.VERIFY
        plan.block[:] = 1
        return plan


class LinearPlanner:
    """Vanilla self-speculation (LinearSS): a draft forward, then a verify forward.

    Args:
        block: fixed B; None = the published recipe, which picks B by load.
    """

    first_draft = 0

    def __init__(self, block: int | None) -> None:
        self.name = "linear" if block is not None else "linear:recipe"
        self.block_size = None if block is None else check_block(block)
        self.max_in_flight = block or MAX_BLOCK

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        plan = Plan.empty(who)
        usual = self.block_size or recipe_block(load)
        asked = table.fixed_block[who]
        draft_or_verify(plan, table, np.where(asked > 0, asked, usual))
        return plan


METHODS = ("ar", "linear", "linear:recipe", "tidar", "dflash", "overlap", "adaptive", "recguide")
TAKES_BLOCK = frozenset({"linear", "tidar", "dflash", "overlap"})
"""Methods with a fixed block; the others have none or choose it."""
NEEDS_GUIDANCE = frozenset({"adaptive", "recguide"})
DEFAULT_BLOCK = 16


def check_method(name: str) -> str:
    """Validate a method's name.

    Raises:
        UsageError: unknown, with the nearest known one.
    """
    if name not in METHODS:
        raise UsageError(f"Unknown method '{name}'.", nearest(name, METHODS))
    return name
