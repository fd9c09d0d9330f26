"""Between the engine's tables and the buffers of device-resident rounds, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from recguide_core.engine.planners import ArPlanner, LinearPlanner, Planner
from recguide_core.engine.planners_overlap import OverlapPlanner, TidarPlanner
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


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """How the device chooses as a planner would.

    Attributes:
        rule: branches; target: wanted B of the requests, int64 [n].
        ahead: no round is larger than all targets together, so that one can be launched before
            the size of its plan is known.
    """

    rule: RoundRule
    target: IntArray
    ahead: bool


def device_choice(planner: Planner, table: RequestTable, who: IntArray) -> DeviceChoice | None:
    """Rule and blocks with which the device decides what the planner would; None where only the
    planner knows (blocks by load or history, priced branches), and plans every round.
    """
    if type(planner) is ArPlanner:
        return DeviceChoice(RoundRule(), np.ones(len(who), np.int64), ahead=True)
    usual, asked = planner.block_size, table.fixed_block.take(who)
    if usual is None:
        return None
    target = np.where(asked > 0, asked, usual)
    if type(planner) is LinearPlanner:
        return DeviceChoice(RoundRule(), target, ahead=True)
    if type(planner) is OverlapPlanner:
        by = planner.rule
        rule = RoundRule(by.delta, by.corrections, by.continuation)
        return DeviceChoice(rule, target, ahead=False)
    # Where the context could end before the budget, the planner cuts blocks to what is left.
    roomy = (table.room.take(who) - table.remaining.take(who) >= target).all()
    if type(planner) is TidarPlanner and roomy:
        return DeviceChoice(RoundRule(tidar=True), target, ahead=False)
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


def chosen(record: Record) -> Plan:
    """What the device chose for the next round, in the order of the slots, as it packs them."""
    found = record.plan
    act = found.act.numpy()
    who = np.flatnonzero(act)

    def taken(column: torch.Tensor) -> IntArray:
        return column.numpy()[who].astype(np.int64)

    return Plan(
        who=who,
        act=taken(found.act),
        block=taken(found.block),
        branch_kind=taken(found.kind),
        branch_parent=taken(found.parent),
        branch_alt=taken(found.alt),
        branch_block=taken(found.branch_block),
    )


def readings_of(record: Record) -> StepReadings:
    """Read-out of every packed token of a round."""
    return StepReadings.of_device(record.ids, record.stats)
