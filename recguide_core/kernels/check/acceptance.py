"""Accepted lengths from a law instead of from meaning: the core of a replay on random weights.

P(A_B >= k) = S(min(k, B)) with one survival curve S for every block size, because a short block
accepts what a long one would have accepted, cut at B. S runs linearly through the full-block
rates of NLD-8B measured at B = 4, 8, 16 and 32 over six data sets: 81.5, 59.7, 40.6, 27.2 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from recguide_core.kernels.choose_torch import RoundRule
from recguide_core.kernels.ops import Geometry, PageTable, Rotation, RoundOps
from recguide_core.kernels.round_state import (
    Emitted,
    PackedRows,
    ReadoutBuffers,
    RoundPlan,
    RoundState,
)
from recguide_core.kernels.sampled_rows import RowNoise
from recguide_core.records import MAX_BLOCK, Act

FULL_BLOCK = {1: 1.0, 4: 0.8151, 8: 0.5973, 16: 0.4056, 32: 0.2723}
"""P(A >= B) by B."""
DRAWS = 4096


def survival() -> np.ndarray:
    """S(k) for k = 1..MAX_BLOCK."""
    return np.interp(np.arange(1, MAX_BLOCK + 1), list(FULL_BLOCK), list(FULL_BLOCK.values()))


def mean_accepted(block: int) -> float:
    """Mean accepted length at block size B under the law."""
    return float(survival()[:block].sum())


@dataclass(frozen=True, slots=True)
class Script:
    """Draws that the rounds follow, on the device.

    Attributes:
        matched: accepted drafts of an endless block, int32 [DRAWS]; hit: the branch of the
            mismatch (or of the full block) is there and right, int32 [DRAWS].
        cursor: next draw, int32 [1]; advances inside the graph.
    """

    matched: torch.Tensor
    hit: torch.Tensor
    cursor: torch.Tensor

    @classmethod
    def drawn(cls, hit_rate: float, device: torch.device, seed: int = 0) -> Script:
        """Independent draws; `hit_rate` is h, the share of rounds whose draft is reused."""
        rng = np.random.default_rng(seed)
        chance = rng.random(DRAWS)
        lengths = (survival()[None, :] > chance[:, None]).sum(1)
        hits = rng.random(DRAWS) < hit_rate
        return cls(
            torch.from_numpy(lengths - 1).int().to(device),
            torch.from_numpy(hits).int().to(device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )


class ForcedOps:
    """`RoundOps` whose verdicts come from a `Script`; all other work is done as usual.

    Before a draft is kept, its margins are set so that the branch rule proposes a branch at the
    coming mismatch (two risky positions a block, as the paper's rule finds). Before a round is
    settled, the verifier's tokens are set to agree with the draft up to the drawn length and with
    the branch where the draw says so.
    """

    def __init__(self, ops: RoundOps, script: Script, vocab: int) -> None:
        self.geometry: Geometry = ops.geometry
        self._ops = ops
        self._script = script
        self._vocab = vocab
        # Made here: a capture allows no copy from the host.
        self._eos = script.cursor.new_tensor(ops.geometry.eos_ids)

    def choose(
        self, state: RoundState, target: torch.Tensor, rule: RoundRule, plan: RoundPlan
    ) -> None:
        self._open_branches(state)
        self._ops.choose(state, target, rule, plan)

    def assemble(self, state: RoundState, plan: RoundPlan, rows: PackedRows) -> None:
        self._ops.assemble(state, plan, rows)

    def prepare(self, q_ptr: torch.Tensor, prefix: torch.Tensor) -> None:
        self._ops.prepare(q_ptr, prefix)

    def rotate_and_store(
        self, qkv: torch.Tensor, rotation: Rotation, rows: PackedRows, table: PageTable,
        k_pool: torch.Tensor, v_pool: torch.Tensor,
    ) -> None:  # fmt: skip
        self._ops.rotate_and_store(qkv, rotation, rows, table, k_pool, v_pool)

    def attend(
        self, qkv: torch.Tensor, rows: PackedRows, table: PageTable, prefix: torch.Tensor,
        k_pool: torch.Tensor, v_pool: torch.Tensor, out: torch.Tensor,
    ) -> None:  # fmt: skip
        self._ops.attend(qkv, rows, table, prefix, k_pool, v_pool, out)

    def add_adapter(
        self, out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor,
        adapter: torch.Tensor,
    ) -> None:  # fmt: skip
        self._ops.add_adapter(out, x, down, up, adapter)

    def readout(
        self, logits: torch.Tensor, into: ReadoutBuffers, noise: RowNoise | None = None
    ) -> None:
        self._ops.readout(logits, into, noise)

    def settle(
        self, state: RoundState, plan: RoundPlan, rows: PackedRows, read: ReadoutBuffers,
        emitted: Emitted, decisions: int,
    ) -> None:  # fmt: skip
        self._force(state, plan, rows, read)
        self._ops.settle(state, plan, rows, read, emitted, decisions)
        self._script.cursor.add_(len(state.live)).remainder_(DRAWS)
        # A host that plans the next step sees the margins that `choose` would see.
        self._open_branches(state)

    def _draw(self, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(matched, hit) of each slot's next verdict, int64 [N]; same until the cursor moves."""
        at = (self._script.cursor + torch.arange(slots, device=self._script.cursor.device)) % DRAWS
        return self._script.matched[at].long(), self._script.hit[at].long()

    def _open_branches(self, state: RoundState) -> None:
        """Risky are the coming mismatch and the position behind it, unless the draw is a miss."""
        matched, hit = self._draw(len(state.live))
        place = torch.arange(MAX_BLOCK, device=matched.device)[None, :]
        mismatch = (matched + 1)[:, None]
        risky = (hit[:, None] != 0) & ((place == mismatch) | (place == mismatch + 1))
        state.margin.copy_(torch.where(risky & (place > 0), 0.1, 0.9))
        state.alt.copy_((state.draft + 1) % self._vocab)

    def _force(
        self, state: RoundState, plan: RoundPlan, rows: PackedRows, read: ReadoutBuffers
    ) -> None:
        matched, hit = self._draw(len(state.live))
        B = plan.block.long()
        matched = torch.minimum(matched, B - 1).clamp_min(0)
        place = torch.arange(MAX_BLOCK, device=matched.device)[None, :]
        verify = (plan.act == int(Act.VERIFY))[:, None] & (place < B[:, None])
        following = torch.roll(state.draft.long(), -1, 1)
        wrong = (following + 1) % self._vocab
        # A mismatch answered by `alt` (draft + 1) is a hit; by draft + 2 it is a miss.
        answer = torch.where(hit[:, None] != 0, wrong, (following + 2) % self._vocab)
        token = torch.where(place < matched[:, None], following, answer)
        bonus = self._continuation_token(plan, rows, read, B)
        full = (matched == B - 1)[:, None] & (place == matched[:, None])
        guess = torch.where(hit != 0, bonus, (bonus + 1) % self._vocab)[:, None]
        token = torch.where(full, guess, token)
        token = torch.where(torch.isin(token, self._eos), token + 1, token)
        at = rows.q_ptr[:-1].long()[:, None] + place
        at = torch.where(verify, at, len(read.ids))
        ids = torch.cat([read.ids[:, 0], read.ids.new_zeros(1)]).long()
        ids.scatter_(0, at.reshape(-1), torch.where(verify, token, 0).reshape(-1))
        read.ids[:, 0] = ids[:-1].int()

    def _continuation_token(
        self, plan: RoundPlan, rows: PackedRows, read: ReadoutBuffers, B: torch.Tensor
    ) -> torch.Tensor:
        """First prediction of each request's continuation row, or any token without one."""
        sizes = torch.where(plan.kind >= 0, plan.branch_block, 0).long()
        first = rows.q_ptr[:-1].long() + B
        before = sizes.cumsum(1) - sizes
        is_last = (plan.kind == 1).long()
        start = first + (before * is_last).sum(1)
        start = start.clamp_max(len(read.ids) - 1)
        return read.ids[start, 0].long()
