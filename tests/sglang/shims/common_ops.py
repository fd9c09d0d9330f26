"""Plain-torch stand-in for sgl_kernel's compiled `common_ops`; for CPU tests only.

Without a CUDA driver sgl_kernel cannot load its library and tries `import common_ops` last. Two
operators are enough for speculative decoding: the copy that SGLang prepares at pool start-up, and
the one that writes new KV slots into the row table.
"""

import ctypes

import torch

LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")


def operator(schema):
    def define(function):
        LIBRARY.define(schema)
        LIBRARY.impl(schema.split("(")[0], function, "CPU")
        return function

    return define


@operator(
    "assign_req_to_token_pool_cpu(Tensor req_pool_indices, Tensor(a!) req_to_token, "
    "Tensor start_offset, Tensor end_offset, Tensor out_cache_loc, int pool_len) -> ()"
)
def assign_req_to_token_pool(rows, table, starts, ends, slots, width):
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        assert end <= width, f"row {row} is written to {end}, but holds {width}"
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


@operator(
    "copy_all_layer_kv_cache_cpu(Tensor data_ptrs, Tensor strides, Tensor tgt_loc, "
    "Tensor src_loc) -> ()"
)
def copy_all_layer_kv_cache(pointers, strides, targets, sources):
    for base, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        # All sources are read before the first target is written: the two may overlap.
        lines = [ctypes.string_at(base + s * stride, stride) for s in sources.tolist()]
        for target, line in zip(targets.tolist(), lines, strict=True):
            ctypes.memmove(base + target * stride, line, stride)
