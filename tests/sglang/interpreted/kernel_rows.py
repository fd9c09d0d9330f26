"""The packed kernel on SGLang's row table, in Triton's interpreter: eager and in graph buffers."""

import numpy as np
import pytest
import torch
from rows_world import scattered_cache

from recguide_core.engine.rows import pack
from recguide_core.kernels.graphs import GraphKey
from recguide_core.kernels.launch import AttentionConfig
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.model.published import published_config
from recguide_core.records import Row, Rows
from recguide_core.sglang_plugin.executors import geometry_of
from recguide_core.sglang_plugin.graphs import BufferAttention, RowBuffers
from recguide_core.sglang_plugin.row_attention import KernelRowAttention, TorchRowAttention

CONFIG = published_config("nld-8b")
HEADS, KV, DIM = 4, 1, 128
"""One tensor-parallel rank of eight."""
ROWS = [
    Row(0, [1] * 6, 37, commit=True),
    Row(0, [2] * 4, 39, parent=0, parent_len=2, bidirectional=True),
    Row(0, [3] * 5, 43, parent=0, parent_len=6, bidirectional=True),
    Row(1, [4] * 8, 20, bidirectional=True),
    Row(2, [5] * 3, 0, commit=True),
]
PREFIX = np.array([37, 20, 0, 0])


@pytest.fixture
def world():
    cache = scattered_cache(CONFIG, rows=4, width=64, driver_slots=4)
    # Heads of one rank, and two layers are enough.
    torch.manual_seed(0)
    shape = (len(cache.k[0]), KV, DIM)
    cache.k, cache.v = ([torch.randn(shape) for _ in range(2)] for _ in range(2))
    cache.row[:] = [2, 0, 3, 1]
    step = pack(Rows.of(ROWS), PREFIX)
    total = len(step.positions)
    q, k, v = (torch.randn(total, n, DIM) for n in (HEADS, KV, KV))
    twin = TorchRowAttention(cache, step, HEADS // KV)
    return cache, step, (q, k, v), twin


def kernels(tokens, requests):
    return TritonRoundOps(
        geometry_of(CONFIG, 8), tokens, requests, "cpu", 16, exact=True,
        config=AttentionConfig(32, 16, 4, 2),
    )  # fmt: skip


def test_the_kernel_reads_the_row_table_in_place(world):
    cache, step, qkv, twin = world
    out = KernelRowAttention(cache, step, kernels(32, 4)).attend(0, *qkv)
    written = cache.k[0].clone()
    expected = twin.attend(0, *qkv)
    assert torch.allclose(out, expected, atol=2e-5)
    assert torch.equal(written, cache.k[0])


def test_only_commit_rows_are_written(world):
    cache, _, qkv, twin = world
    before = cache.k[1].clone()
    twin.attend(1, *qkv)
    changed = (cache.k[1] != before).any(-1).any(-1).nonzero().squeeze(-1).tolist()
    slots = cache.table[2, 37:43].tolist() + cache.table[3, 0:3].tolist()
    assert sorted(changed) == sorted(slots)


def test_graph_buffers_give_the_same_attention_and_write_padding_to_slot_zero(world):
    cache, step, (q, k, v), twin = world
    key = GraphKey.of(len(q), len(step.slots))
    buffers, ops = RowBuffers(key, cache), kernels(key.tokens, key.requests)
    buffers.fill(step)
    ops.prepare(buffers.q_ptr, buffers.prefix)
    pad = [torch.cat((x, torch.randn(key.tokens - len(x), *x.shape[1:]))) for x in (q, k, v)]
    before = cache.k[0].clone()
    out = BufferAttention(buffers, ops, buffers.slots()).attend(0, *pad)
    after = cache.k[0].clone()
    cache.k[0].copy_(before)
    expected = twin.attend(0, q, k, v)
    assert torch.allclose(out[: len(q)], expected, atol=2e-5)
    assert not out[len(q) :].any()
    cache.k[0][0] = after[0]
    assert torch.equal(after, cache.k[0])
