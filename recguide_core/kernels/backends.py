"""Attention back ends: which can run here, which one is used, and the reason for every other.

`torch` is the oracle and the CPU default. `triton` runs every mode on CUDA and can be captured.
`flashinfer` serves uniform verify and draft batches, on request. Heavy imports happen inside the
checks, never when this module is imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from recguide_core.errors import CapacityError, UsageError, nearest
from recguide_core.kernels import launch


@dataclass(frozen=True, slots=True)
class Target:
    """What a back end would have to run.

    Attributes:
        device: torch device type; dtype: name of the model's dtype, e.g. "bfloat16".
        capability: compute capability (9, 0) of a CUDA device.
    """

    device: str
    dtype: str
    head_dim: int
    group: int
    page: int
    eos_ids: int = 1
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """One row of the table.

    Attributes:
        serves: which forwards; why_not: reason against a target, None when it is usable.
        automatic: may be chosen without being asked for.
    """

    name: str
    serves: str
    why_not: Callable[[Target], str | None]
    automatic: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """The back end in use; `reasons` says why each other one is not."""

    name: str
    reasons: dict[str, str]


def _torch(target: Target) -> str | None:
    del target
    return None


def _triton(target: Target) -> str | None:
    if target.device != "cuda":
        return "needs a CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if target.dtype != "bfloat16":
        return f"no compiled kernel for {target.dtype}, only for bfloat16"
    if (target.head_dim, target.group) not in launch.SHAPES:
        return f"no compiled kernel for head size {target.head_dim}, {target.group} heads a KV head"
    if target.page not in launch.PAGE_SIZES:
        return f"no compiled kernel for pages of {target.page}; use 1 or 16"
    if target.eos_ids > launch.MAX_EOS:
        return f"more than {launch.MAX_EOS} EOS ids"
    if target.capability is not None and target.capability < (9, 0):
        return f"checked for compute capability 9.0 and newer, not {target.capability}"
    return None


def _flashinfer(target: Target) -> str | None:
    if target.device != "cuda":
        return "needs a CUDA device"
    if importlib.util.find_spec("flashinfer") is None:
        return 'FlashInfer is not installed (extra "sglang")'
    if target.dtype not in ("bfloat16", "float16"):
        return f"no kernel for {target.dtype}"
    return None


BACKENDS = (
    AttentionBackend("triton", "every row mode, captured in graphs", _triton),
    AttentionBackend("flashinfer", "one row a request: ar, linear", _flashinfer, automatic=False),
    AttentionBackend("torch", "every row mode, any device", _torch),
)
"""In order of preference."""


def reasons(target: Target) -> dict[str, str | None]:
    """Every back end and why it cannot run `target`; None where it can."""
    return {b.name: b.why_not(target) for b in BACKENDS}


def choose(target: Target, requested: str | None = None) -> Choice:
    """The back end for a target.

    Raises:
        UsageError: no such back end. CapacityError: the requested one cannot run here.
    """
    found = reasons(target)
    if requested is not None:
        if requested not in found:
            raise UsageError(
                f"Unknown attention back end '{requested}'.", nearest(requested, found)
            )
        reason = found[requested]
        if reason is not None:
            raise CapacityError(
                f"The attention back end '{requested}' cannot run here: {reason}.",
                "Leave --attention-backend out, or see `recguide doctor`.",
            )
        name = requested
    else:
        name = next(b.name for b in BACKENDS if b.automatic and found[b.name] is None)
    others = {n: r or "not chosen" for n, r in found.items() if n != name}
    return Choice(name, others)
