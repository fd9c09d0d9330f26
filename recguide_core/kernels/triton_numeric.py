"""Small device functions shared by the Triton kernels.

`EXACT` selects the arithmetic that Triton's interpreter gets right: it multiplies bf16 bit
patterns in `tl.dot` and truncates on the way to bf16, so tests run dots in fp32 and round by
hand. Compiled kernels have EXACT = False and use the tensor cores.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_bf16(x):
    """fp32 -> bf16, nearest even (finite inputs), on the bit pattern."""
    bits = x.to(tl.uint32, bitcast=True)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return upper.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def store_as(pointer, x, mask, EXACT: tl.constexpr):
    """Store fp32 `x` in the element type of `pointer`."""
    if EXACT and pointer.dtype.element_ty == tl.bfloat16:
        tl.store(pointer, round_bf16(x), mask=mask)
    else:
        tl.store(pointer, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def dot(a, b, EXACT: tl.constexpr):
    """a @ b with an fp32 accumulator."""
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def as_weights(p, value, EXACT: tl.constexpr):
    """Softmax weights in the type that `dot` wants beside `value`."""
    if EXACT:
        return p
    else:
        return p.to(value.dtype)
