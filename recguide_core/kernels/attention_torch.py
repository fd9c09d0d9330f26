"""Packed-row attention in torch: the oracle of every kernel, and the engine's CPU default.

A query token sees its request's committed prefix [0, P) and two intervals of the request's
in-flight tokens: [a0, a1) of its own row and [b0, b1) of its parent row. In-flight K/V are
written behind the prefix, so a request's keys are one run of its pages: a view when the pages are
adjacent, a gather otherwise. The GQA group is folded into the query dimension.

Requests are attended one by one, or in one padded call when they all bring the same number of
tokens and their runs lie at equal distances (`UNIFORM_MAX_TOKENS` says up to which size that is
the faster way; measured by `benchmarks/attention_paths.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from recguide_core.kvcache import KVPool
from recguide_core.records import IntArray

UNIFORM_MAX_TOKENS = 16
"""Largest tokens per request for which one padded call beats a call per request on CPU."""


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


class TorchAttention:
    """Attention of one forward over a `KVPool`; see the module docstring for the rule.

    Shapes: q [T, H, D]; k, v [T, Hkv, D]; result [T, H * D]; dtype of the model throughout.
    """

    def __init__(self, pool: KVPool, layout: PackedLayout, group: int) -> None:
        self.pool = pool
        self.group = group
        self.device = pool.k[0].device
        self.dtype = pool.k[0].dtype
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
        counts = np.diff(layout.offset)
        if len(counts) == 1:
            start = self.pool.run_start(int(layout.request[0]))
            if start >= 0:
                first = start + int(layout.prefix[0])
                return slice(first, first + int(counts[0]))
        slots = [
            self.pool.slots(int(r), int(p), int(n))
            for r, p, n in zip(layout.request, layout.prefix, counts, strict=True)
        ]
        return torch.from_numpy(np.concatenate(slots)).to(self.device)

    def _mask(self, layout: PackedLayout, index: int, width: int) -> np.ndarray | None:
        """Additive float32 [n, width] of one request, or None when every key is visible."""
        first, last = int(layout.offset[index]), int(layout.offset[index + 1])
        prefix, n = int(layout.prefix[index]), last - first
        seen = in_flight_mask(layout.vis[first:last], first, n)
        if width == prefix + n and seen.all():
            return None
        mask = np.zeros((n, width), np.float32)
        mask[:, prefix : prefix + n][~seen] = -np.inf
        mask[:, prefix + n :] = -np.inf
        return mask

    def _upload(self, mask: np.ndarray) -> torch.Tensor:
        """[R, n, width] -> [R, 1, n, width] on the device. A mask of three dimensions would do as
        well, but torch then leaves its fused kernel for one that is three times as slow.
        """
        return torch.from_numpy(mask[:, None]).to(self.device, self.dtype)

    def _plan_singles(self, layout: PackedLayout) -> list[_Single]:
        out = []
        for i, request in enumerate(layout.request.tolist()):
            first, last = int(layout.offset[i]), int(layout.offset[i + 1])
            length = int(layout.prefix[i]) + last - first
            start = self.pool.run_start(request)
            keys: slice | torch.Tensor
            if start >= 0:
                keys = slice(start, start + length)
            else:
                keys = torch.from_numpy(self.pool.slots(request, 0, length)).to(self.device)
            mask = self._mask(layout, i, length)
            out.append(
                _Single(first, last, keys, None if mask is None else self._upload(mask[None]))
            )
        return out

    def _plan_uniform(self, layout: PackedLayout) -> _Uniform | None:
        counts = np.diff(layout.offset)
        if len(counts) < 2 or counts.min() != counts.max() or counts[0] > UNIFORM_MAX_TOKENS:
            return None
        starts = np.array([self.pool.run_start(r) for r in layout.request.tolist()])
        order = np.argsort(starts)
        gaps = np.diff(starts[order])
        if starts.min() < 0 or gaps.min() != gaps.max():
            return None
        length = int((layout.prefix + counts).max())
        if not self._padding_is_safe(layout.request, starts, length):
            return None
        masks = np.full((len(counts), int(counts[0]), length), -np.inf, np.float32)
        for place, i in enumerate(order.tolist()):
            mask = self._mask(layout, i, length)
            masks[place] = 0.0 if mask is None else mask
        in_order = bool((order == np.arange(len(order))).all())
        return _Uniform(
            order=None if in_order else torch.from_numpy(order).to(self.device),
            start=int(starts[order[0]]),
            stride=int(gaps[0]),
            count=len(counts),
            tokens=int(counts[0]),
            length=length,
            mask=self._upload(np.tile(masks, (1, self.group, 1))),
        )

    def _padding_is_safe(self, request: IntArray, starts: IntArray, length: int) -> bool:
        """Whether `length` slots from each start are the request's own or free.

        Masked keys still meet the query: a fault in another request's pages would come through,
        as 0 x NaN. Free pages are wiped.
        """
        size = self.pool.page_size
        page = starts[:, None] // size + np.arange(self.pool.pages_for(length))
        if page.max() >= self.pool.pages:
            return False
        owner = self.pool.owner[page]
        return bool(((owner == request[:, None]) | (owner < 0)).all())
