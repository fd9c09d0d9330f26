"""DFlash-style drafting: a small second model drafts from the target's hidden states."""

from __future__ import annotations

import numpy as np

from recguide_core.engine.planners import check_block, draft_or_verify
from recguide_core.records import Act, IntArray, Plan, RequestTable


class DrafterPlanner:
    """A drafter forward, then a verify forward of the target.

    Args:
        block: B; the drafter proposes B - 1 tokens behind the seed.
    """

    name = "dflash"
    first_draft = 0

    def __init__(self, block: int) -> None:
        self.block_size: int | None = check_block(block)
        self.max_in_flight = block

    def plan(self, table: RequestTable, who: IntArray, load: int) -> Plan:
        del load
        plan = Plan.empty(who)
        asked = table.fixed_block[who]
        draft_or_verify(plan, table, np.where(asked > 0, asked, self.block_size or 1))
        plan.act[plan.act == Act.DRAFT] = Act.DRAFTER
        return plan
