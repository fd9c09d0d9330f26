"""Attention of uniform batches through FlashInfer's causal / bidirectional-ranges wrapper.

Optional: one row a request and no parents, which is what `linear` and `ar` bring (verify and draft
batches). One row is one FlashInfer sequence of P + n keys; a causal row needs no span, a
bidirectional row spans its own n keys. In-flight K/V lie in the pool behind the prefix, in slots
that the step has reserved. `plan()` is host code, so a forward through here is never captured.

`ranges_plan` makes the arguments and is tested without FlashInfer; the rest needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recguide_core.kernels.attention_torch import PackedLayout
from recguide_core.kvcache import KVPool
from recguide_core.records import IntArray

WORKSPACE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class RangesPlan:
    """Arguments of FlashInfer's plan() and run(), int32 on the host.

    Attributes:
        qo_indptr [R + 1], kv_indptr [R + 1] (in pages), kv_indices [pages], last_page_len [R];
        ranges [T, 2]: inclusive key span of each query in its request, (-1, -1) for none;
        slots int64 [T]: where the in-flight K/V go.
    """

    qo_indptr: IntArray
    kv_indptr: IntArray
    kv_indices: IntArray
    last_page_len: IntArray
    ranges: IntArray
    slots: IntArray


def why_not(layout: PackedLayout) -> str | None:
    """Reason why a forward cannot go through this back end; None when it can."""
    lead = np.repeat(layout.offset[:-1], np.diff(layout.offset))
    if (layout.vis[:, 3] > layout.vis[:, 2]).any():
        return "a row sees a parent row"
    if (layout.vis[:, 0] != lead).any():
        return "a request has several rows"
    return None


def ranges_plan(layout: PackedLayout, pool: KVPool) -> RangesPlan:
    """Describe a uniform forward: every request one row, causal or bidirectional."""
    counts = np.diff(layout.offset)
    lengths = layout.prefix + counts
    pages = [
        np.asarray(pool.page_list(int(r))[: pool.pages_for(int(n))])
        for r, n in zip(layout.request, lengths, strict=True)
    ]
    kv_indptr = np.concatenate(([0], np.cumsum([len(p) for p in pages])))
    first = np.repeat(layout.prefix, counts)
    lead, end = np.repeat(layout.offset[:-1], counts), np.repeat(layout.offset[1:], counts)
    whole = layout.vis[:, 1] == end
    # A causal row of one token also "sees its whole row"; the span changes nothing there.
    span = np.stack([first, first + (end - lead) - 1], 1)
    last_of_causal = np.arange(len(lead)) == end - 1
    starts_whole = np.repeat(whole[layout.offset[:-1]], counts)
    spanned = whole & (starts_whole | ~last_of_causal)
    slots = np.concatenate(
        [
            pool.slots(int(r), int(p), int(n))
            for r, p, n in zip(layout.request, layout.prefix, counts, strict=True)
        ]
    )
    return RangesPlan(
        qo_indptr=layout.offset.astype(np.int32),
        kv_indptr=kv_indptr.astype(np.int32),
        kv_indices=np.concatenate(pages).astype(np.int32),
        last_page_len=((lengths - 1) % pool.page_size + 1).astype(np.int32),
        ranges=np.where(spanned[:, None], span, -1).astype(np.int32),
        slots=slots,
    )


class FlashInferAttention:
    """`model.transformer.Attention` over FlashInfer, for layouts that `why_not` lets through."""

    def __init__(self, pool: KVPool, group: int) -> None:
        from flashinfer import BatchPrefillWithCausalBidirectionalRangesWrapper as Wrapper

        self.pool = pool
        self.group = group
        self.planned: RangesPlan | None = None
        keys = pool.k[0]
        space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=keys.device)
        self._wrapper: Any = Wrapper(
            space, kv_layout="NHD", q_data_type=keys.dtype, kv_data_type=keys.dtype,
            head_dim_qk=keys.shape[2], head_dim_vo=keys.shape[2],
        )  # fmt: skip

    def prepare(self, plan: RangesPlan) -> None:
        """Plan one forward; all its layers share the plan."""
        self.planned = plan
        keys = self.pool.k[0]
        self._slots = torch.from_numpy(plan.slots).to(keys.device)
        self._ranges = torch.from_numpy(plan.ranges).to(keys.device)
        host = (plan.qo_indptr, plan.kv_indptr, plan.kv_indices, plan.last_page_len)
        kv_heads, dim = keys.shape[1:]
        self._wrapper.plan(
            *(torch.from_numpy(a) for a in host), kv_heads * self.group, kv_heads, dim,
            self.pool.page_size,
        )  # fmt: skip

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self.pool.k[layer], self.pool.v[layer]
        keys.index_copy_(0, self._slots, k)
        values.index_copy_(0, self._slots, v)
        paged = (-1, self.pool.page_size, *keys.shape[1:])
        out = self._wrapper.run(
            q.contiguous(), (keys.view(paged), values.view(paged)), self._ranges
        )
        return torch.as_tensor(out).reshape(len(q), -1)
