"""Matrix products of a forward: x @ W^T by whatever the device does fastest.

On a CPU the forwards of a decode step hold few tokens, and the plain BLAS call reads a weight
matrix at a fraction of the memory's rate. Two other ways are two times as fast: a column-major
matrix for one token, and oneDNN's blocked layout for more (`benchmarks/weight_layout.py`). Same
float32 arithmetic in another order of summation. Elsewhere a product is `F.linear`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

PACK_BYTES = 512 << 20
"""Weights above this many bytes are not packed: a packed matrix is a second copy."""

_HINT = 16
"""Tokens for which the blocked layout is chosen; it serves all counts (same benchmark)."""

_COUNTS = (2, *range(4, 129, 4), *range(136, 257, 8), *range(272, 513, 16))
"""Token counts that blocked products run with; others are filled up with zero rows, on average 3 %
of them, of fewer than 64 tokens 7 %. oneDNN keeps half a megabyte for every count it has met, so it
must not meet all. More tokens than the last go through in pieces of that many."""

_FILLED = tuple(next((c for c in _COUNTS if c >= n), 0) for n in range(_COUNTS[-1] + 1))


def spare_rows(tokens: int) -> int:
    """Zero rows that blocked products add to so many; a forward that brings them saves copies."""
    return _FILLED[tokens] - tokens if 1 < tokens <= _COUNTS[-1] else 0


def laid_out(matrix: torch.Tensor) -> torch.Tensor:
    """The same [out, in] matrix in the memory order that one token is multiplied by fastest.

    On a CPU that is column by column, but for matrices wider than tall.
    """
    if matrix.device.type != "cpu" or matrix.shape[0] < matrix.shape[1]:
        return matrix
    return matrix.t().contiguous().t()


def packed(weight: torch.Tensor) -> torch.Tensor | None:
    """oneDNN's blocked copy of weight [out, in], None where it can't be had or fails its check.

    The operators are private ones of torch (inductor's freezing uses them), so a product is tried
    before they are relied on.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        with torch.inference_mode():
            blocked: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(
                weight.contiguous(), _HINT
            )
            probe = torch.linspace(-1, 1, 4 * weight.shape[1]).view(4, -1)
            right = torch.allclose(
                _blocked(probe, blocked), F.linear(probe, weight), rtol=1e-3, atol=1e-3
            )
    except (AttributeError, RuntimeError):
        return None
    return blocked if right else None


def _blocked(x: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, blocked, None, "none", [], "")
    return out


class Product:
    """x [T, in] -> x @ weight^T, [T, out].

    Args:
        weight: [out, in], any memory order.
        pack: keep a blocked copy for calls of two and more tokens where the device has one.
    """

    __slots__ = ("blocked", "weight")

    def __init__(self, weight: torch.Tensor, *, pack: bool) -> None:
        self.weight = weight
        self.blocked = packed(weight) if pack else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[0]
        if self.blocked is None or tokens < 2:
            return F.linear(x, self.weight)
        if tokens > _COUNTS[-1]:
            return torch.cat([self(piece) for piece in torch.split(x, _COUNTS[-1])])
        filled = _FILLED[tokens]
        if filled == tokens:
            return _blocked(x, self.blocked)
        return _blocked(F.pad(x, (0, 0, 0, filled - tokens)), self.blocked)[:tokens]
