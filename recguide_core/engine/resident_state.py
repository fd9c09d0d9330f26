"""Between the engine's tables and the buffers of device-resident rounds, both ways."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recguide_core.engine.planners import ArPlanner, LinearPlanner, Planner
from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.scheduler import Live
from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.resident_buffers import Record, Staged
from recguide_core.kernels.round_state import STOP_IDS, RoundState
from recguide_core.kernels.row_noise import columns
from recguide_core.records import IntArray, Plan, RequestTable, Sampling

_COPIED = (
    "committed", "seed", "remaining", "room", "has_draft", "draft_block", "draft", "alt",
    "margin", "confidence", "e1", "e2", "prev_block", "prev_full", "rounds",
)  # fmt: skip
PLAIN = RoundRule()
"""The rule of methods without branches: verify what is drafted, else draft the wanted block."""


def wanted_blocks(planner: Planner, table: RequestTable, who: IntArray) -> IntArray | None:
    """B of the requests [n] where `PLAIN` decides as the planner does, so the device may.

    None: only the planner knows (blocks by load or history, branches), and plans every round.
    """
    if type(planner) is ArPlanner:
        return np.ones(len(who), np.int64)
    if type(planner) is LinearPlanner and planner.block_size is not None:
        asked = table.fixed_block.take(who)
        return np.where(asked > 0, asked, planner.block_size)
    return None


def fill_state(
    state: RoundState, table: RequestTable, running: Mapping[int, Live], needs: ReadoutNeeds
) -> None:
    """Where every slot stands, into host buffers."""
    for name in _COPIED:
        getattr(state, name).numpy()[:] = getattr(table, name)
    state.live.numpy()[:] = table.decoding
    state.reused.zero_()
    stop, ignore = state.stop_ids.numpy(), state.ignore_eos.numpy()
    stop[:], ignore[:] = -1, 0
    for slot, live in running.items():
        ids = sorted(live.request.stop_ids)
        # With more of them than the device holds, the host finds them when it hands out.
        if len(ids) <= STOP_IDS:
            stop[slot, : len(ids)] = ids
        ignore[slot] = live.request.ignore_eos
    greedy = Sampling()
    wishes = [needs.sampling.get(slot, greedy) for slot in range(len(state.live))]
    for name, column in columns(wishes).items():
        getattr(state, name).copy_(column)


def fill_plan(staged: Staged, plan: Plan) -> None:
    """A plan of the host, by slot."""
    to, who, used = staged.plan, plan.who, plan.branch_kind.shape[1]
    act = to.act.numpy()
    act[:] = 0
    act[who], to.block.numpy()[who] = plan.act, plan.block
    to.kind.fill_(-1)
    for tensor, grid in (
        (to.kind, plan.branch_kind),
        (to.parent, plan.branch_parent),
        (to.alt, plan.branch_alt),
        (to.branch_block, plan.branch_block),
    ):
        tensor.numpy()[who, :used] = grid


def tokens_of(plan: Plan) -> IntArray:
    """Packed tokens of each entry, int64 [n]."""
    branches = np.where(plan.branch_kind >= 0, plan.branch_block, 0).sum(1)
    return np.asarray(np.where(plan.act > 0, plan.block + branches, 0))


def plan_of(record: Record) -> Plan:
    """What the device chose, in the order of the slots, as it packs them."""
    who = np.flatnonzero(record.act)
    plan = Plan.empty(who)
    plan.act[:], plan.block[:] = record.act[who], record.block[who]
    return plan


def readings_of(record: Record) -> StepReadings:
    """Read-out of every packed token of a round."""
    ids, stats = record.ids.astype(np.int64), record.stats
    return StepReadings(
        token=ids[:, 0],
        alt=ids[:, 1],
        confidence=stats[:, 0].copy(),
        margin=stats[:, 2].copy(),
        entropy=stats[:, 3].copy(),
    )
