"""Muon for the hidden matrices, AdamW for the embedding and the norms.

Muon (Keller Jordan, 2024): momentum, then five Newton-Schulz steps that bring the update close to
an orthogonal matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_DECAY = 0.05


def orthogonalise(update: Tensor) -> Tensor:
    """Return a matrix of `update`'s row and column space with singular values near one."""
    x = update.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    result: Tensor = (x.T if tall else x).float()
    return result


class MuonAdamW:
    """Both optimisers behind one `step`; parameters that take no gradient are left alone."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        pairs = [(n, p) for n, p in named if p.requires_grad]
        self.matrices = [
            p for n, p in pairs if p.ndim == 2 and "embed" not in n and "lora" not in n
        ]
        self.others = [p for n, p in pairs if p.ndim != 2 or "embed" in n or "lora" in n]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(self.others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, muon_rate: float, adam_rate: float) -> None:
        """Apply the gradients and clear them."""
        for p, average in zip(self.matrices, self.momentum, strict=True):
            assert p.grad is not None
            average.lerp_(p.grad, 0.05)
            update = orthogonalise(p.grad.lerp(average, 0.95))
            scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
            p.mul_(1 - muon_rate * _DECAY).add_(update, alpha=-muon_rate * scale)
            p.grad = None
        torch.nn.utils.clip_grad_norm_(self.others, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = adam_rate
        self.adam.step()
        self.adam.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs."""
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        for mine, saved in zip(self.momentum, state["momentum"], strict=True):
            mine.copy_(saved)
        self.adam.load_state_dict(state["adam"])
