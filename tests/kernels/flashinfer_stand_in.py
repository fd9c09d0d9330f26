"""FlashInfer's causal / bidirectional-ranges wrapper as its documentation states it, in float64.

    mask = causal OR in_range; one inclusive [start, end] span of request-local key positions a
    query, (-1, -1) for none; query i of a request stands at key position kv_len - qo_len + i

Written from the public documentation; checks every argument that the real wrapper relies on, so
that what we hand over is tested without a GPU. The kernel itself is not.
"""

from __future__ import annotations

import sys
import types

import pytest
import torch


class Wrapper:
    """Stands in for `BatchPrefillWithCausalBidirectionalRangesWrapper`."""

    planned = 0

    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", *, q_data_type, kv_data_type, head_dim_qk,
        head_dim_vo, o_data_type=None,
    ) -> None:  # fmt: skip
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.numel() >= 128 << 20
        assert kv_layout == "NHD"
        assert o_data_type in (None, q_data_type)
        self.types = q_data_type, kv_data_type
        self.dim = head_dim_qk
        assert head_dim_vo == head_dim_qk

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size,
    ) -> None:  # fmt: skip
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        for array in arrays:
            assert array.dtype == torch.int32 and array.device.type == "cpu"
        assert head_dim_qk == self.dim and num_qo_heads % num_kv_heads == 0
        n = len(qo_indptr) - 1
        assert len(paged_kv_indptr) == n + 1 and len(paged_kv_last_page_len) == n
        assert qo_indptr[0] == 0 and paged_kv_indptr[0] == 0
        assert (qo_indptr.diff() > 0).all() and (paged_kv_indptr.diff() > 0).all()
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        self.arrays, self.heads, self.page = arrays, (num_qo_heads, num_kv_heads), page_size
        Wrapper.planned += 1

    def run(self, q, paged_kv_cache, ranges) -> torch.Tensor:
        qo, ptr, pages, last = self.arrays
        keys, values = paged_kv_cache
        heads, kv_heads = self.heads
        assert q.is_contiguous() and q.shape == (int(qo[-1]), heads, self.dim)
        assert (q.dtype, keys.dtype) == self.types
        assert keys.shape[1:] == values.shape[1:] == (self.page, kv_heads, self.dim)
        assert ranges.dtype == torch.int32 and ranges.is_contiguous()
        assert ranges.shape == (int(qo[-1]), 2)
        out = torch.empty_like(q)
        for r in range(len(last)):
            mine = pages[ptr[r] : ptr[r + 1]].long()
            length = (len(mine) - 1) * self.page + int(last[r])
            k, v = (
                cache[mine].reshape(-1, kv_heads, self.dim)[:length].double()
                for cache in (keys, values)
            )
            span = slice(int(qo[r]), int(qo[r + 1]))
            out[span] = _attend(q[span].double(), k, v, ranges[span]).to(q.dtype)
        return out


def _attend(q, k, v, ranges) -> torch.Tensor:
    n, length, group = len(q), len(k), q.shape[1] // k.shape[1]
    at = torch.arange(length)[None, :]
    mask = at <= length - n + torch.arange(n)[:, None]
    start, end = ranges[:, :1].long(), ranges[:, 1:].long()
    assert ((end < length) & (start >= -1)).all()
    mask = mask | ((start >= 0) & (at >= start) & (at <= end))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("nhd,lhd->hnl", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    # Keys that nobody may see can hold anything, NaN too.
    weights = weights.masked_fill(~mask, 0.0)
    return torch.einsum("hnl,lhd->nhd", weights, v.nan_to_num())


@pytest.fixture
def flashinfer(monkeypatch):
    """`import flashinfer` finds the stand-in."""
    module = types.ModuleType("flashinfer")
    module.BatchPrefillWithCausalBidirectionalRangesWrapper = Wrapper
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    Wrapper.planned = 0
    return Wrapper
