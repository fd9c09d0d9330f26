"""RoPE, query temperature and the K/V write of commit rows, in torch.

Half-split rotation: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), in fp32, rounded once.
"""

from __future__ import annotations

import torch


def pool_slots(
    pos: torch.Tensor,
    request: torch.Tensor,
    commit: torch.Tensor,
    pages: torch.Tensor,
    page_ptr: torch.Tensor,
    page: int,
) -> torch.Tensor:
    """Pool slot of each packed token whose K/V are committed, -1 for all others, int32 [T]."""
    wanted = (commit != 0) & (request >= 0)
    first = page_ptr[torch.where(wanted, request, 0).long()].long()
    at = torch.where(wanted, first + pos.long() // page, 0)
    slot = pages[at].long() * page + pos.long() % page
    return torch.where(wanted, slot, -1).int()


def rotate_and_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heat: torch.Tensor,
    slots: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    heads: int,
) -> None:
    """Rotate q and k of `qkv` in place, scale q, write K/V of tokens with slot >= 0.

    Args:
        qkv: [T, (H + 2 N) D]; cos, sin fp32 [T, D / 2]; heat: query temperature fp32 [T].
        slots: int32 [T], -1 = no write; k_pool, v_pool: [slots, N, D].
        heads: H.
    """
    T = len(qkv)
    kv_heads, D = k_pool.shape[1:]
    x = qkv.view(T, heads + 2 * kv_heads, D)
    half = D // 2
    turning = x[:, : heads + kv_heads].float()
    a, b = turning[..., :half], turning[..., half:]
    c, s = cos[:, None, :], sin[:, None, :]
    turned = torch.cat([a * c - b * s, b * c + a * s], -1)
    turned[:, :heads] *= heat[:, None, None]
    x[:, : heads + kv_heads] = turned.to(qkv.dtype)
    write = (slots >= 0).nonzero()[:, 0]
    to = slots[write].long()
    k_pool[to] = x[write, heads : heads + kv_heads].to(k_pool.dtype)
    v_pool[to] = x[write, heads + kv_heads :].to(v_pool.dtype)
