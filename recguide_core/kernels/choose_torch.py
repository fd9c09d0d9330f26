"""What every request does next, decided on the device: draft, verify, and with which branches.

The rules are `policy.branches.propose` (Sec. 5.1) and the state machine of the rounds; tests hold
them together. It lets a captured graph run whole rounds of `ar`, `linear`, `overlap` and `tidar`
without asking the host; adaptive methods send their block sizes ahead in `target`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recguide_core.kernels.round_state import RoundPlan, RoundState
from recguide_core.records import Act, BranchKind


@dataclass(frozen=True, slots=True)
class RoundRule:
    """Branch layout of a device-resident method.

    Attributes:
        delta: a position is risky when its margin is below (strictly); corrections: 0..2 branches.
        continuation: prepare for full acceptance when at most two positions are risky.
        tidar: instead one branch behind every verified position.
    """

    delta: float = 0.5
    corrections: int = 0
    continuation: bool = False
    tidar: bool = False


def choose(state: RoundState, target: torch.Tensor, rule: RoundRule, plan: RoundPlan) -> None:
    """Fill `plan` in place; requests without room idle. Twin of `choose_triton.choose_acts`.

    Args:
        target: wanted B of each request, int32 [N]; 1 is plain AR.
    """
    plan.act.fill_(int(Act.IDLE))
    plan.block.zero_()
    plan.kind.fill_(-1)
    plan.parent.zero_()
    plan.alt.fill_(-1)
    plan.branch_block.zero_()
    for r in range(len(state.live)):
        room, wanted = int(state.room[r]), int(target[r])
        if not int(state.live[r]) or room < 1:
            continue
        drafted = bool(state.has_draft[r])
        block = min(int(state.draft_block[r]) if drafted else wanted, room)
        if block < 2:
            plan.act[r], plan.block[r] = int(Act.VERIFY), 1
            continue
        plan.act[r] = int(Act.VERIFY if drafted else Act.DRAFT)
        plan.block[r] = block
        if drafted:
            for k, branch in enumerate(_branches(state, r, block, wanted, rule)):
                plan.kind[r, k], plan.parent[r, k], plan.alt[r, k] = branch
                plan.branch_block[r, k] = wanted


def _branches(
    state: RoundState, r: int, block: int, size: int, rule: RoundRule
) -> list[tuple[int, int, int]]:
    """(kind, parent_len, alt) of the branches beside request r's verify row, in row order."""

    def fits(parent: int) -> bool:
        return parent < int(state.remaining[r]) and parent + size <= int(state.room[r])

    if rule.tidar:
        places = range(1, block + 1)
        return [(int(BranchKind.POSITION), i, -1) for i in places if fits(i)]
    margin, alt = state.margin[r].tolist(), state.alt[r].tolist()
    risky = [i for i in range(1, block) if margin[i] < rule.delta]
    chosen = [
        (int(BranchKind.CORRECTION), p, alt[p])
        for p in risky[: rule.corrections]
        if fits(p) and alt[p] >= 0
    ]
    if rule.continuation and len(risky) <= 2 and fits(block):
        chosen.append((int(BranchKind.CONTINUATION), block, -1))
    return chosen
