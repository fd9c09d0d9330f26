"""Attention, read-out, settle, assemble and the small fused kernels, each beside its torch twin.

Knows tensors and the row rule of the packed forward. Must not know policy, requests as objects,
files or the engine loop. Files ending in `_triton` import Triton and are themselves imported
lazily, so everything else works where Triton is not installed.
"""
