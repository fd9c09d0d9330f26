"""The draft adapter under a row mask, in torch: out += mask * (x A^T) B^T.

All tokens go through the same shapes whatever their rows are, so a captured graph serves every
mix of draft and verify rows. The scale alpha / r is folded into B at load (`model.lora`).
"""

from __future__ import annotations

import torch


def add_masked(
    out: torch.Tensor,
    x: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    adapter: torch.Tensor,
) -> None:
    """Add the low-rank delta in place for tokens with adapter != 0.

    Args:
        out: [T, hidden]; x: [T, K]; down: A [r, K]; up: B [hidden, r]; adapter: int32 [T].
    """
    on = (adapter != 0)[:, None]
    low = (x.float() @ down.float().T).to(x.dtype)
    delta = low.float() @ up.float().T
    # where, not a product: 0 * NaN of a padding token is NaN.
    out.copy_(torch.where(on, out.float() + delta, out.float()).to(out.dtype))
