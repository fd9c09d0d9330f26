"""Packed-row attention in torch: the oracle of every kernel, and the engine's CPU default.

A query token sees its request's committed prefix [0, P) and two intervals of the request's
in-flight tokens: [a0, a1) of its own row and [b0, b1) of its parent row. In-flight K/V are
written behind the prefix, so a request's keys are one run of its pages: a view when the pages are
adjacent, a gather otherwise. The GQA group is folded into the query dimension.

Requests are attended one by one, or in one padded call when they all bring the same number of
tokens and their runs lie at equal distances (`UNIFORM_MAX_TOKENS` and `UNIFORM_MAX_PADDING` say up
to which sizes that is the faster way; measured by `benchmarks/attention_paths.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F

from recguide_core.kvcache import KVPool
from recguide_core.records import IntArray

UNIFORM_MAX_TOKENS = 16
"""Largest tokens per request for which one padded call beats a call per request on CPU."""
UNIFORM_MAX_PADDING = 1.4
"""Largest padded keys / own keys for which it does."""
REMEMBERED_TOKENS = 256
"""Largest forward whose visibility is kept for the next of the same structure."""


@dataclass(slots=True)
class PackedLayout:
    """Where each request's tokens lie in a packed forward (host side, numpy).

    Attributes:
        request: pool key of each of R requests, int64 [R].
        offset: first packed token of each request, int64 [R + 1].
        prefix: committed tokens P of each, int64 [R].
        vis: (a0, a1, b0, b1) of each token in packed indices, int64 [T, 4].
    """

    request: IntArray
    offset: IntArray
    prefix: IntArray
    vis: IntArray


@dataclass(slots=True)
class _Single:
    """One request's part of a forward."""

    first: int
    last: int
    keys: slice | torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class _Uniform:
    """All requests in one strided call: order[i] is the request whose run comes i-th."""

    order: torch.Tensor | None
    start: int
    stride: int
    count: int
    tokens: int
    length: int
    mask: torch.Tensor


def in_flight_mask(vis: IntArray, first: int, count: int) -> np.ndarray:
    """bool [n, count]: which in-flight tokens first..first+count-1 each of n tokens sees."""
    key = np.arange(first, first + count)
    own = (key >= vis[:, 0:1]) & (key < vis[:, 1:2])
    return np.asarray(own | ((key >= vis[:, 2:3]) & (key < vis[:, 3:4])))


def hidden_blocks(layout: PackedLayout) -> tuple[np.ndarray | None, ...]:
    """Additive float32 [n, n] over each request's in-flight tokens, None where all are visible.

    Steps of one structure share them (a step's rows mostly look like the last one's), so they are
    not to be written to.
    """
    made = _hidden_blocks if len(layout.vis) <= REMEMBERED_TOKENS else _hidden_blocks.__wrapped__
    return made(layout.vis.tobytes(), layout.offset.tobytes())


@functools.lru_cache(maxsize=64)
def _hidden_blocks(vis: bytes, offset: bytes) -> tuple[np.ndarray | None, ...]:
    intervals = np.frombuffer(vis, np.int64).reshape(-1, 4)
    bounds = np.frombuffer(offset, np.int64).tolist()
    blocks: list[np.ndarray | None] = []
    for first, last in pairwise(bounds):
        seen = in_flight_mask(intervals[first:last], first, last - first)
        blocks.append(None if seen.all() else np.where(seen, np.float32(0), np.float32(-np.inf)))
    return tuple(blocks)


class TorchAttention:
    """Attention of one forward over a `KVPool`; see the module docstring for the rule.

    Shapes: q [T, H, D]; k, v [T, Hkv, D]; result [T, H * D]; dtype of the model throughout.
    """

    def __init__(self, pool: KVPool, layout: PackedLayout, group: int) -> None:
        self.pool = pool
        self.group = group
        self.device = pool.k[0].device
        self.dtype = pool.k[0].dtype
        self._starts = [pool.run_start(request) for request in layout.request.tolist()]
        self._prefix = layout.prefix.tolist()
        self._bounds = layout.offset.tolist()
        self._blocks = hidden_blocks(layout)
        self._write = self._write_slots(layout)
        self._uniform = self._plan_uniform(layout)
        self._singles = [] if self._uniform else self._plan_singles(layout)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self.pool.k[layer], self.pool.v[layer]
        if isinstance(self._write, slice):
            keys[self._write] = k
            values[self._write] = v
        else:
            keys.index_copy_(0, self._write, k)
            values.index_copy_(0, self._write, v)
        if self._uniform is not None:
            return self._attend_uniform(self._uniform, q, keys, values)
        if len(self._singles) == 1:
            return self._attend_single(self._singles[0], q, keys, values)
        parts = [
            self._attend_single(one, q[one.first : one.last], keys, values) for one in self._singles
        ]
        return torch.cat(parts)

    def _attend_single(
        self, one: _Single, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        n, heads, dim = q.shape
        kv = heads // self.group
        # KV heads are the batch and their query heads share one K/V by stride 0: nothing is copied.
        out = F.scaled_dot_product_attention(
            q.view(n, kv, self.group, dim).permute(1, 2, 0, 3),
            keys[one.keys].transpose(0, 1).unsqueeze(1).expand(kv, self.group, -1, dim),
            values[one.keys].transpose(0, 1).unsqueeze(1).expand(kv, self.group, -1, dim),
            attn_mask=one.mask,
        )
        return out.permute(2, 0, 1, 3).reshape(n, heads * dim)

    def _attend_uniform(
        self, plan: _Uniform, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        total, heads, dim = q.shape
        n, kv, group = plan.tokens, heads // self.group, self.group
        packed = q.view(plan.count, n, kv, group, dim)
        if plan.order is not None:
            packed = packed[plan.order]
        row = kv * dim
        shape, strides = (plan.count, kv, plan.length, dim), (plan.stride * row, dim, row, 1)
        out = F.scaled_dot_product_attention(
            packed.permute(0, 2, 3, 1, 4).reshape(plan.count, kv, group * n, dim),
            keys.as_strided(shape, strides, plan.start * row),
            values.as_strided(shape, strides, plan.start * row),
            attn_mask=plan.mask,
        )
        out = out.view(plan.count, kv, group, n, dim).permute(0, 3, 1, 2, 4)
        out = out.reshape(plan.count, n, heads * dim)
        if plan.order is not None:
            placed = torch.empty_like(out)
            placed[plan.order] = out
            out = placed
        return out.reshape(total, heads * dim)

    def _write_slots(self, layout: PackedLayout) -> slice | torch.Tensor:
        if len(self._starts) == 1 and self._starts[0] >= 0:
            first = self._starts[0] + self._prefix[0]
            return slice(first, first + self._bounds[1])
        slots = [
            self.pool.slots(request, prefix, last - first)
            for request, prefix, (first, last) in zip(
                layout.request.tolist(), self._prefix, pairwise(self._bounds), strict=True
            )
        ]
        return torch.from_numpy(np.concatenate(slots)).to(self.device)

    def _upload(self, mask: np.ndarray) -> torch.Tensor:
        """[R, 1, n, width] to the device. A mask of three dimensions would do as well, but torch
        then leaves its fused kernel for one that is three times as slow.
        """
        return torch.from_numpy(mask).to(self.device, self.dtype)

    def _plan_singles(self, layout: PackedLayout) -> list[_Single]:
        out = []
        for i, (first, last) in enumerate(pairwise(self._bounds)):
            prefix, start, block = self._prefix[i], self._starts[i], self._blocks[i]
            length = prefix + last - first
            keys: slice | torch.Tensor
            if start >= 0:
                keys = slice(start, start + length)
            else:
                slots = self.pool.slots(int(layout.request[i]), 0, length)
                keys = torch.from_numpy(slots).to(self.device)
            mask = None
            if block is not None:
                hidden = np.zeros((1, 1, last - first, length), np.float32)
                hidden[0, 0, :, prefix:] = block
                mask = self._upload(hidden)
            out.append(_Single(first, last, keys, mask))
        return out

    def _plan_uniform(self, layout: PackedLayout) -> _Uniform | None:
        count, n = len(self._starts), self._bounds[1]
        if count < 2 or n > UNIFORM_MAX_TOKENS or self._bounds != [*range(0, count * n + 1, n)]:
            return None
        order = sorted(range(count), key=self._starts.__getitem__)
        starts = [self._starts[i] for i in order]
        gaps = {after - before for before, after in pairwise(starts)}
        if starts[0] < 0 or len(gaps) > 1:
            return None
        length = max(self._prefix) + n
        if count * length > UNIFORM_MAX_PADDING * (sum(self._prefix) + count * n):
            return None
        if not self._padding_is_safe(layout.request, length):
            return None
        masks = np.zeros((count, 1, self.group, n, length), np.float32)
        for mask, i in zip(masks, order, strict=True):
            prefix, block = self._prefix[i], self._blocks[i]
            if block is not None:
                mask[..., prefix : prefix + n] = block
            mask[..., prefix + n :] = -np.inf
        in_order = self._starts == starts
        return _Uniform(
            order=None if in_order else torch.tensor(order, device=self.device),
            start=starts[0],
            stride=gaps.pop(),
            count=count,
            tokens=n,
            length=length,
            mask=self._upload(masks.reshape(count, 1, self.group * n, length)),
        )

    def _padding_is_safe(self, request: IntArray, length: int) -> bool:
        """Whether `length` slots from each start are the request's own or free.

        Masked keys still meet the query: a fault in another request's pages would come through,
        as 0 x NaN. Free pages are wiped.
        """
        size = self.pool.page_size
        page = np.array(self._starts)[:, None] // size + np.arange(self.pool.pages_for(length))
        if page.max() >= self.pool.pages:
            return False
        owner = self.pool.owner[page]
        return bool(((owner == request[:, None]) | (owner < 0)).all())
