"""What the attention kernel computes, in plain torch: the oracle of `attention_triton`.

Works on the same packed tensors (intervals, CSR page table) and in any dtype that the caller
asks for; slow and literal. The CPU engine's fast path is `attention_torch`.
"""

from __future__ import annotations

import torch


def prefix_slots(
    pages: torch.Tensor, page_ptr: torch.Tensor, request: int, length: int, page: int
) -> torch.Tensor:
    """Pool slots of a request's committed tokens 0..length-1, int64 [length]."""
    j = torch.arange(length, device=pages.device)
    first = int(page_ptr[request])
    return pages[first + j // page].long() * page + j % page


def visible(vis: torch.Tensor, lo: int, hi: int) -> torch.Tensor:
    """In-flight visibility among packed tokens [lo, hi), bool [hi - lo, hi - lo]."""
    j = torch.arange(lo, hi, device=vis.device)[None, :]
    v = vis[lo:hi].long()
    own = (j >= v[:, 0:1]) & (j < v[:, 1:2])
    return own | ((j >= v[:, 2:3]) & (j < v[:, 3:4]))


def attend(
    q: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    pages: torch.Tensor,
    page_ptr: torch.Tensor,
    q_ptr: list[int],
    prefix: list[int],
    vis: torch.Tensor,
    page: int,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Attention of packed rows: shapes as in `attention_triton`, result [T, H, D] in `dtype`.

    Args:
        q_ptr: packed token offsets of the requests, R + 1 values; prefix: P of each.
        scale: softmax scale, default D ** -0.5.
    """
    T, H, D = q.shape
    group = H // k_new.shape[1]
    scale = D**-0.5 if scale is None else scale
    out = torch.zeros(T, H, D, dtype=dtype, device=q.device)
    for r, P in enumerate(prefix):
        lo, hi = q_ptr[r], q_ptr[r + 1]
        if hi == lo:
            continue
        slots = prefix_slots(pages, page_ptr, r, P, page)
        keys = torch.cat([k_pool[slots], k_new[lo:hi]]).to(dtype).repeat_interleave(group, 1)
        values = torch.cat([v_pool[slots], v_new[lo:hi]]).to(dtype).repeat_interleave(group, 1)
        mask = torch.ones(hi - lo, P + hi - lo, dtype=torch.bool, device=q.device)
        mask[:, P:] = visible(vis, lo, hi)
        score = torch.einsum("qhd,khd->hqk", q[lo:hi].to(dtype), keys) * scale
        weights = score.masked_fill(~mask, float("-inf")).softmax(-1)
        out[lo:hi] = torch.einsum("hqk,khd->qhd", weights, values)
    return out
