"""Attention of packed rows over SGLang's KV pool: the torch twin, and the kernel on CUDA.

In-flight K/V stay in the packed tensors: a query reads the committed prefix through the row table
and the rest from the forward itself. Only commit rows write to the pool, so branches need no
slots and the pool's reserve is one verify block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from recguide_core.engine.rows import PackedStep
from recguide_core.kernels.attention_torch import in_flight_mask
from recguide_core.kernels.ops import PageTable
from recguide_core.sglang_plugin.row_cache import RowCache, writes_of


class TorchRowAttention:
    """Request by request, the GQA group folded into the query axis; any device and dtype.

    Shapes: q [T, H, D]; k, v [T, Hkv, D]; result [T, H * D].
    """

    def __init__(self, cache: RowCache, step: PackedStep, group: int) -> None:
        self.cache = cache
        self.group = group
        writes = writes_of(cache, step)
        flat = cache.table.view(-1)
        device = cache.device
        self._token = torch.from_numpy(writes.token).to(device)
        self._slot = flat[torch.from_numpy(writes.at).to(device)].long()
        self._parts = []
        for r, row in enumerate(cache.rows_of(step).tolist()):
            first, last = int(step.offset[r]), int(step.offset[r + 1])
            prefix = int(step.prefix[r])
            slots = cache.table[row, :prefix].long()
            self._parts.append((first, last, slots, self._mask(step, first, last, prefix)))

    def _mask(self, step: PackedStep, first: int, last: int, prefix: int) -> torch.Tensor | None:
        """Additive [1, 1, G * n, P + n] of one request, None when every key is visible."""
        n = last - first
        seen = in_flight_mask(step.vis[first:last], first, n)
        if seen.all():
            return None
        mask = np.zeros((n, prefix + n), np.float32)
        mask[:, prefix:][~seen] = -np.inf
        folded = np.tile(mask, (self.group, 1))[None, None]
        return torch.from_numpy(folded).to(self.cache.device, self.cache.k[0].dtype)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self.cache.k[layer], self.cache.v[layer]
        outs = []
        for first, last, slots, mask in self._parts:
            seen_k = torch.cat((keys[slots], k[first:last]))
            seen_v = torch.cat((values[slots], v[first:last]))
            outs.append(self._attend(q[first:last], seen_k, seen_v, mask))
        keys.index_copy_(0, self._slot, k[self._token])
        values.index_copy_(0, self._slot, v[self._token])
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        n, heads, dim = q.shape
        kv, group = heads // self.group, self.group
        folded = q.view(n, kv, group, dim).permute(1, 2, 0, 3).reshape(1, kv, group * n, dim)
        out = F.scaled_dot_product_attention(
            folded, k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
        )
        return out.view(kv, group, n, dim).permute(2, 0, 1, 3).reshape(n, heads * dim)


class KernelRowAttention:
    """The packed kernel on the row table in place: page size 1, one CSR offset a request.

    Args:
        ops: `kernels.ops_triton.TritonRoundOps` sized for this step.
    """

    def __init__(self, cache: RowCache, step: PackedStep, ops: Any) -> None:
        self.cache = cache
        self.ops = ops
        self.inputs = kernel_inputs(cache, step)
        self._table = PageTable(cache.table.view(-1), self.inputs["row_ptr"], 1)
        ops.prepare(self.inputs["q_ptr"], self.inputs["prefix"])

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self.cache.k[layer], self.cache.v[layer]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.ops.attend_rows(q, k, v, self.inputs["vis"], self._table, keys, values, out)
        token = self.inputs["write_token"]
        slot = self.cache.table.view(-1)[self.inputs["write_at"]].long()
        keys.index_copy_(0, slot, k[token])
        values.index_copy_(0, slot, v[token])
        return out.view(len(q), -1)


def kernel_inputs(cache: RowCache, step: PackedStep) -> dict[str, torch.Tensor]:
    """What the kernel reads of a step.

    Returns:
        vis int32 [T, 4]; q_ptr int32 [R + 1]; prefix int32 [R]; row_ptr int32 [R + 1]: offsets of
        the rows in the flattened table; write_token, write_at int64 [W].
    """
    writes = writes_of(cache, step)
    rows = cache.row_offsets(step)
    assert rows.max(initial=0) + cache.table.shape[1] < 1 << 31, "the row table exceeds int32"

    def up(array: np.ndarray, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array.astype(dtype))).to(cache.device)

    return {
        "vis": up(step.vis, np.int32),
        "q_ptr": up(step.offset, np.int32),
        "prefix": up(step.prefix, np.int32),
        "row_ptr": up(np.append(rows, 0), np.int32),
        "write_token": up(writes.token, np.int64),
        "write_at": up(writes.at, np.int64),
    }
