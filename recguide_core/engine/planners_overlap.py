"""Methods that draft inside the verify forward: predictive overlap and the TiDAR layout."""

from __future__ import annotations

import numpy as np

from recguide_core.engine.planners import check_block, draft_or_verify, place_branches
from recguide_core.policy.branches import BRANCHES, BranchRule, propose
from recguide_core.records import Act, BranchKind, IntArray, Plan, RequestTable


class OverlapPlanner:
    """Predictive draft-verify overlap (Sec. 5.1), the paper's rule and never priced.

    Args:
        block: B; rule: delta and how many branches are proposed.
    """

    name = "overlap"
    first_draft = 0

    def __init__(self, block: int, rule: BranchRule | None = None) -> None:
        self.block_size: int | None = check_block(block)
        self.rule = rule or BranchRule()
        self.max_in_flight = block * (1 + BRANCHES)

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        del load
        plan = Plan.empty(who, BRANCHES)
        asked = table.fixed_block[who]
        usual = self.block_size or 1
        draft_or_verify(plan, table, np.where(asked > 0, asked, usual))
        add_branches(plan, table, self.rule)
        return plan


def add_branches(plan: Plan, table: RequestTable, rule: BranchRule) -> None:
    """Give the verify rows that carry a draft the branches that the rule proposes."""
    entry = table.has_draft.take(plan.who).nonzero()[0]
    if not len(entry):
        return
    who = plan.who.take(entry)
    proposal = propose(
        table.margin.take(who, axis=0),
        table.alt.take(who, axis=0),
        plan.block.take(entry),
        table.remaining.take(who),
        table.room.take(who),
        rule,
    )
    place_branches(plan, entry, proposal)


class TidarPlanner:
    """The TiDAR layout: every acceptance position drafts its own next block, B (B + 1) tokens.

    After A accepted tokens the block that hypothesised A is the next draft, its slot 0 replaced
    by the verifier's token, so each round is one forward. The first draft is made beside the
    last prompt chunk.
    """

    name = "tidar"

    def __init__(self, block: int) -> None:
        self.block_size: int | None = check_block(block)
        self.first_draft = block
        self.max_in_flight = block * (1 + block)

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        del load
        asked = table.fixed_block[who]
        usual = self.block_size or 1
        block = np.where(asked > 0, asked, usual)
        plan = Plan.empty(who, int(block.max()) if len(who) else 0)
        draft_or_verify(plan, table, block)
        position = np.arange(1, plan.branch_kind.shape[1] + 1)
        left = np.minimum(block[:, None], table.room[who][:, None] - position)
        used = (plan.act == Act.VERIFY)[:, None] & (position <= plan.block[:, None])
        # A block that starts behind the budget or the context drafts for no round; one token
        # drafts nothing.
        used &= (position < table.remaining[who][:, None]) & (left > 1)
        plan.branch_kind[used] = BranchKind.POSITION
        plan.branch_parent[:] = np.where(used, position, 0)
        plan.branch_block[:] = np.where(used, left, 0)
        return plan
