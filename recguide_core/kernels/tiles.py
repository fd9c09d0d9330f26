"""Split-KV work list: which program handles which query block and which keys.

A work item is (request, first M row, key_lo, key_hi, takes in-flight keys, partial slot or -1,
q_lo, q_hi); an M block whose prefix is cut into several ranges also gets a group
(first slot, ranges, first M row, q_lo, q_hi, 0, 0, 0) for the merge. The range length is the
smallest one that keeps items x KV heads within `slots` (two programs an SM), so a short batch is
cut finely and a wide one not at all. `fixed_range` pins it instead: the rounding of a request
then does not depend on the batch that it runs in.

The same list is built on the device by `tiles_triton.plan_tiles`, in the same order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

ITEM = 8
GROUP = 8


@dataclass(frozen=True, slots=True)
class Tiles:
    """A work list on the device, with capacities fixed by the buffers.

    Attributes:
        items: int32 [W, 8]; n_items: int32 [1]; groups: int32 [V, 8]; n_groups: int32 [1].
    """

    items: torch.Tensor
    n_items: torch.Tensor
    groups: torch.Tensor
    n_groups: torch.Tensor

    @classmethod
    def sized(cls, capacity: TileCapacity, device: torch.device | str) -> Tiles:
        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            ints(max(1, capacity.items), ITEM),
            ints(1),
            ints(max(1, capacity.groups), GROUP),
            ints(1),
        )


@dataclass(frozen=True, slots=True)
class TileCapacity:
    """Upper bounds of one graph key: work items, groups to merge, partial slots."""

    items: int
    groups: int
    partials: int


def capacity(
    tokens: int,
    requests: int,
    group: int,
    block_m: int,
    kv_heads: int,
    slots: int,
    fixed_ranges: int = 0,
) -> TileCapacity:
    """Bounds for any batch of at most `tokens` tokens in at most `requests` requests.

    Every request adds at most one unfilled M block. The search for a range length ends either
    within the slot budget or with one range a block, and only the former has partial results.
    With a pinned length every block may have `fixed_ranges` ranges: context / length.
    """
    blocks = tokens * group // block_m + requests
    if fixed_ranges:
        total = blocks * max(1, fixed_ranges)
        return TileCapacity(items=total, groups=blocks, partials=total)
    budget = max(1, slots // kv_heads)
    return TileCapacity(items=max(blocks, budget), groups=max(1, budget // 2), partials=budget)


def range_length(
    blocks: list[int], prefix: list[int], block_n: int, kv_heads: int, slots: int
) -> int:
    """Keys per range; grows in steps of an eighth, multiples of `block_n`."""
    length, longest = block_n, max(prefix, default=0)

    def items(n: int) -> int:
        return sum(b * max(1, -(-p // n)) for b, p in zip(blocks, prefix, strict=True))

    while items(length) * kv_heads > slots and length < longest:
        length += max(block_n, length // 8 // block_n * block_n)
    return length


def plan(
    q_ptr: list[int],
    prefix: list[int],
    group: int,
    block_m: int,
    block_n: int,
    kv_heads: int,
    slots: int,
    fixed_range: int = 0,
) -> tuple[list[list[int]], list[list[int]]]:
    """Work items and merge groups on the host: the twin of the device planner.

    Args:
        q_ptr: packed token offsets of the requests, R + 1 values.
        prefix: committed length P of each request.
        slots: programs that the device runs at once.
    """
    spans = list(itertools.pairwise(q_ptr))
    blocks = [-(-(hi - lo) * group // block_m) for lo, hi in spans]
    length = fixed_range or range_length(blocks, prefix, block_n, kv_heads, slots)
    items: list[list[int]] = []
    groups: list[list[int]] = []
    slot = 0
    for r, (lo, hi) in enumerate(spans):
        splits = max(1, -(-prefix[r] // length))
        for block in range(blocks[r]):
            m_start = block * block_m
            if splits > 1:
                groups.append([slot, splits, m_start, lo, hi, 0, 0, 0])
            for s in range(splits):
                key_hi = min(prefix[r], (s + 1) * length)
                # The last range is the shortest, so it also takes the in-flight keys.
                last = int(s == splits - 1)
                mine = slot if splits > 1 else -1
                items.append([r, m_start, s * length, key_hi, last, mine, lo, hi])
                slot += int(splits > 1)
    return items, groups
