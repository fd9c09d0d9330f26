"""A planner of the engine over device-resident rounds: records to tensors and back.

`kernels.planned_rounds` knows no policy; this joins the two.
"""

from __future__ import annotations

import numpy as np

from recguide_core.engine.planners import Planner
from recguide_core.kernels.round_state import Emitted, RoundPlan, RoundState
from recguide_core.records import RequestTable, Source

_COPIED = (
    "committed", "seed", "remaining", "room", "draft_block", "draft", "alt", "margin",
    "confidence", "e1", "e2", "prev_block", "rounds",
)  # fmt: skip


class HostPlan:
    """`planned_rounds.Decide` by a planner.

    Args:
        load: C that the planner is told.
    """

    def __init__(self, planner: Planner, slots: int, load: int) -> None:
        self.planner = planner
        self.load = load
        self.table = RequestTable.sized(slots)

    def __call__(self, state: RoundState, emitted: Emitted, plan: RoundPlan) -> None:
        table = self.table
        for name in _COPIED:
            getattr(table, name)[:] = getattr(state, name).numpy()
        live = (state.live.numpy() != 0) & (table.room > 0)
        table.live[:] = table.decoding[:] = live
        table.has_draft[:] = state.has_draft.numpy() != 0
        table.prev_full[:] = state.prev_full.numpy() != 0
        # A draft behind a hit was sized before the last entropy; any other is the step's own.
        hit = emitted.hit.numpy() >= 0
        table.draft_source[:] = np.where(hit, Source.CORRECTION, Source.DRAFT)
        who = np.flatnonzero(live)
        plan.act.zero_()
        plan.block.zero_()
        plan.kind.fill_(-1)
        plan.branch_block.zero_()
        if not len(who):
            return
        made = self.planner.plan(table, who, self.load)
        plan.act.numpy()[who] = made.act
        plan.block.numpy()[who] = made.block
        used = made.branch_kind.shape[1]
        grids = (
            (plan.kind, made.branch_kind),
            (plan.parent, made.branch_parent),
            (plan.alt, made.branch_alt),
            (plan.branch_block, made.branch_block),
        )
        for tensor, grid in grids:
            tensor.numpy()[who, :used] = grid
