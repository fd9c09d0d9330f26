"""Freed memory that stays with the process: steps take and give back the same megabytes.

The C library returns large blocks to the system when they are freed and gets new ones, page by
page, for the next step: several hundred page faults a step on a CPU, some 4 % of its time.
"""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 256 << 20
"""Free bytes at the top of the heap that are not given back."""
_LARGEST = 32 << 20
"""Blocks up to this size come from the heap; the C library allows no more."""


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep freed blocks; False where it can't be asked (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    asked = (mallopt(_TRIM_THRESHOLD, _KEPT), mallopt(_MMAP_THRESHOLD, _LARGEST))
    return all(done == 1 for done in asked)
