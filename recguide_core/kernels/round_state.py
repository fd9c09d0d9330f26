"""What a device-resident round reads and writes: state, plan and packed rows as tensors.

The device form of `records.RequestTable`, `records.Plan` and `records.Rows`, kept in fixed
buffers so that a captured graph replays on their current contents. Integers are int32, flags
int32 0 / 1, statistics fp32. Slot r of every array is one request; a dead slot has live = 0.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Any

import torch

from recguide_core.records import MAX_BLOCK

BRANCHES = 3
"""Branch slots of a request: two corrections and the continuation (Sec. 5.1); the TiDAR layout
needs one for every verified position."""
STOP_IDS = 8
"""Stop ids that a request may bring along."""

_STATE_FLOATS = frozenset({"margin", "confidence", "e1", "e2", "temperature", "top_p", "min_p"})
_STATE_WIDTH = {
    **dict.fromkeys(("draft", "alt", "margin", "confidence"), MAX_BLOCK),
    "stop_ids": STOP_IDS,
}


def _cut(flat: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """Views of consecutive pieces of a buffer."""
    ends = list(itertools.accumulate(sizes))
    return [flat[end - size : end] for size, end in zip(sizes, ends, strict=True)]


class _Buffers:
    """Shared by the three records: everything is a tensor, copied field by field."""

    def tensors(self) -> dict[str, torch.Tensor]:
        named: Any = self
        return {f.name: getattr(named, f.name) for f in fields(named)}

    def copy_(self, other: Any) -> None:
        """Overwrite the contents in place, as a captured graph needs it."""
        for name, tensor in self.tensors().items():
            tensor.copy_(getattr(other, name))


@dataclass(slots=True)
class RoundState(_Buffers):
    """Requests between rounds, N slots.

    Attributes:
        live, has_draft: int32 [N]; committed: P; seed; remaining: token budget left; room:
            positions behind P; all int32 [N].
        draft_block: B of the waiting draft; draft: its tokens, slot 0 = seed, int32 [N, MAX_BLOCK].
        alt int32, margin, confidence fp32 [N, MAX_BLOCK]: read-out of the draft.
        e1, e2: e_{t-1}, e_{t-2}, NaN without history, fp32 [N].
        prev_block, prev_full, rounds, reused: int32 [N].
        stop_ids: tokens that end the output beside the model's EOS (included in it), -1 for
            none, int32 [N, STOP_IDS]; ignore_eos: go on behind EOS, int32 [N].
        temperature: T, 0 = greedy, fp32 [N]; noise_key: bits of `sampling_torch.seed_key`,
            int32 [N].
        top_k: 0 = off, int32 [N]; top_p: 1 = off, min_p: 0 = off, fp32 [N].
    """

    live: torch.Tensor
    has_draft: torch.Tensor
    committed: torch.Tensor
    seed: torch.Tensor
    remaining: torch.Tensor
    room: torch.Tensor
    draft_block: torch.Tensor
    draft: torch.Tensor
    alt: torch.Tensor
    margin: torch.Tensor
    confidence: torch.Tensor
    e1: torch.Tensor
    e2: torch.Tensor
    prev_block: torch.Tensor
    prev_full: torch.Tensor
    rounds: torch.Tensor
    reused: torch.Tensor
    stop_ids: torch.Tensor
    ignore_eos: torch.Tensor
    temperature: torch.Tensor
    noise_key: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def over(cls, flat: torch.Tensor, slots: int) -> RoundState:
        """Views of one int32 buffer of `flat_size(slots)` elements: one copy moves them all."""
        widths = [_STATE_WIDTH.get(f.name, 1) for f in fields(cls)]
        parts = _cut(flat, [slots * w for w in widths])
        made = {}
        for f, width, part in zip(fields(cls), widths, parts, strict=True):
            typed = part.view(torch.float32) if f.name in _STATE_FLOATS else part
            made[f.name] = typed.view(slots, width) if f.name in _STATE_WIDTH else typed
        return cls(**made)

    @classmethod
    def flat_size(cls, slots: int) -> int:
        return slots * sum(_STATE_WIDTH.get(f.name, 1) for f in fields(cls))

    @classmethod
    def sized(cls, slots: int, device: torch.device | str = "cpu") -> RoundState:
        flat = torch.zeros(cls.flat_size(slots), dtype=torch.int32, device=device)
        state = cls.over(flat, slots)
        blanks = (
            ("alt", -1), ("margin", 1.0), ("confidence", 1.0), ("stop_ids", -1), ("top_p", 1.0),
        )  # fmt: skip
        for name, value in blanks:
            getattr(state, name).fill_(value)
        state.e1.fill_(float("nan"))
        state.e2.fill_(float("nan"))
        return state


@dataclass(slots=True)
class RoundPlan(_Buffers):
    """What each request does in this step; meanings as in `records.Plan`.

    Attributes:
        act: `records.Act`; block: B of the draft or width of the verify row. int32 [N].
        kind, parent, alt, branch_block: int32 [N, K], used branches first, kind -1 = none.
    """

    act: torch.Tensor
    block: torch.Tensor
    kind: torch.Tensor
    parent: torch.Tensor
    alt: torch.Tensor
    branch_block: torch.Tensor

    @classmethod
    def sized(
        cls, slots: int, device: torch.device | str = "cpu", branches: int = BRANCHES
    ) -> RoundPlan:
        def ints(fill: int, *shape: int) -> torch.Tensor:
            return torch.full((slots, *shape), fill, dtype=torch.int32, device=device)

        k = branches
        return cls(ints(0), ints(0), ints(-1, k), ints(0, k), ints(-1, k), ints(0, k))

    @classmethod
    def over(cls, flat: torch.Tensor, slots: int, branches: int = BRANCHES) -> RoundPlan:
        """Views of one int32 buffer of `flat_size(slots, branches)` elements; K = `branches`."""
        act, block, *grids = _cut(flat, [slots, slots, *[slots * branches] * 4])
        kind, parent, alt, branch_block = (g.view(slots, branches) for g in grids)
        return cls(act, block, kind, parent, alt, branch_block)

    @staticmethod
    def flat_size(slots: int, branches: int = BRANCHES) -> int:
        return slots * (2 + 4 * branches)


@dataclass(slots=True)
class PackedRows(_Buffers):
    """One packed forward, capacity T tokens of N requests; tokens behind `q_ptr[N]` are padding.

    Attributes:
        ids, pos: token ids and position ids, int32 [T]; 0 in the padding.
        vis: visibility intervals (a0, a1, b0, b1) in packed indices, int32 [T, 4]; empty there.
        adapter: draft LoRA on, int32 [T].
        commit: 1 where K/V enter the pool, int32 [T].
        request: slot of the token's request, -1 in the padding, int32 [T].
        q_ptr: packed token offset of each request, int32 [N + 1].
    """

    ids: torch.Tensor
    pos: torch.Tensor
    vis: torch.Tensor
    adapter: torch.Tensor
    commit: torch.Tensor
    request: torch.Tensor
    q_ptr: torch.Tensor

    @classmethod
    def sized(cls, tokens: int, slots: int, device: torch.device | str = "cpu") -> PackedRows:
        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        t = tokens
        return cls(ints(t), ints(t), ints(t, 4), ints(t), ints(t), ints(t) - 1, ints(slots + 1))

    def head(self, tokens: int) -> PackedRows:
        """The first `tokens` packed tokens, as views."""
        cut = {n: t if n == "q_ptr" else t[:tokens] for n, t in self.tensors().items()}
        return PackedRows(**cut)


@dataclass(slots=True)
class Emitted(_Buffers):
    """What a step hands to the host: one device-to-host copy.

    Attributes:
        tokens: verifier tokens of the round, int32 [N, MAX_BLOCK]; count: how many of them count
            (A after the cut at EOS and budget; 0 for requests that did not verify), int32 [N].
        matched: accepted drafts before the cut; hit: reused branch or -1; width: verified B.
        finished: 0 goes on, 1 EOS or a stop id, 2 budget. int32 [N]. entropy: e_t, fp32 [N].
        next_tokens: packed tokens of the step behind this one, int32 [1].
    """

    tokens: torch.Tensor
    count: torch.Tensor
    matched: torch.Tensor
    hit: torch.Tensor
    width: torch.Tensor
    finished: torch.Tensor
    entropy: torch.Tensor
    next_tokens: torch.Tensor

    @classmethod
    def over(cls, flat: torch.Tensor, slots: int) -> Emitted:
        """Views of one int32 buffer of `flat_size(slots)` elements."""
        cut = slots * MAX_BLOCK
        columns = flat[cut : cut + 6 * slots].view(6, slots)
        count, matched, hit, width, finished, entropy = columns
        return cls(
            flat[:cut].view(slots, MAX_BLOCK), count, matched, hit, width, finished,
            entropy.view(torch.float32), flat[-1:],
        )  # fmt: skip

    @classmethod
    def sized(cls, slots: int, device: torch.device | str = "cpu") -> Emitted:
        return cls.over(torch.zeros(cls.flat_size(slots), dtype=torch.int32, device=device), slots)

    @staticmethod
    def flat_size(slots: int) -> int:
        return slots * (MAX_BLOCK + 6) + 1


@dataclass(frozen=True, slots=True)
class ReadoutBuffers:
    """Read-out of n packed tokens.

    Attributes:
        ids: int32 [n, 2] = (token, alt; alt -1 when there is none).
        stats: fp32 [n, 5] = (p1, p2, margin, entropy in nats, log-sum-exp without MASK).
    """

    ids: torch.Tensor
    stats: torch.Tensor

    @classmethod
    def sized(cls, rows: int, device: torch.device | str = "cpu") -> ReadoutBuffers:
        ids = torch.zeros((rows, 2), dtype=torch.int32, device=device)
        return cls(ids, torch.zeros((rows, 5), dtype=torch.float32, device=device))

    def rows(self, lo: int, hi: int) -> ReadoutBuffers:
        return ReadoutBuffers(self.ids[lo:hi], self.stats[lo:hi])

    @property
    def token(self) -> torch.Tensor:
        return self.ids[:, 0]

    @property
    def alt(self) -> torch.Tensor:
        return self.ids[:, 1]

    @property
    def confidence(self) -> torch.Tensor:
        return self.stats[:, 0]

    @property
    def margin(self) -> torch.Tensor:
        return self.stats[:, 2]

    @property
    def entropy(self) -> torch.Tensor:
        return self.stats[:, 3]

    @property
    def lse(self) -> torch.Tensor:
        return self.stats[:, 4]
