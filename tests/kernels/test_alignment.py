"""What the launches promise the compiler: addresses and strides that are multiples of 16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recguide_core.kernels import launch
from recguide_core.kernels.device_forward import geometry_of
from recguide_core.kernels.ops import Geometry, split_qkv
from recguide_core.kernels.prefill import prompt_rows
from recguide_core.kernels.step_buffers import StepBuffers
from recguide_core.model.registry import load_model


@pytest.mark.parametrize(("D", "group"), launch.SHAPES)
def test_views_of_the_projection(D: int, group: int) -> None:
    """q, k and v of the fused projection are read 16 bytes at a time."""
    g = Geometry(group * 2, 2, D, 100, 16, 0, (1,))
    qkv = torch.zeros(3, (g.heads + 2 * g.kv_heads) * D, dtype=torch.bfloat16)
    for part in split_qkv(qkv, g):
        assert part.data_ptr() % 16 == 0
        assert part.stride(2) == 1
        assert part.stride(0) % 16 == part.stride(1) % 16 == 0


@pytest.mark.parametrize("tokens", [1, 3, 16, 4096])
@pytest.mark.parametrize("requests", [1, 256])
def test_parts_of_the_step_buffer(tokens: int, requests: int) -> None:
    buffers = StepBuffers(tokens, requests, 7, 16, torch.device("cpu"))
    parts = [*buffers.rows.tensors().values(), buffers.prefix, buffers.table.pages]
    base = buffers.rows.ids.data_ptr()
    assert all((part.data_ptr() - base) % 64 == 0 for part in parts)
    assert all(part.is_contiguous() for part in parts)


def test_logits_of_the_published_vocabulary() -> None:
    """Splits start at multiples of the block, so their loads are aligned too."""
    for vocab in (131072, 2048):
        for rows in (1, 17, 500):
            splits = launch.readout_splits(rows, vocab, 132)
            chunk = -(-vocab // (splits * launch.READOUT.block)) * launch.READOUT.block
            assert vocab % 16 == chunk % 16 == 0
            assert chunk * -(-vocab // chunk) >= vocab


def test_a_second_fill_leaves_nothing_of_the_first() -> None:
    """Padding is blank whatever was there before: a captured graph runs over all of it."""
    buffers = StepBuffers(32, 4, 16, 16, torch.device("cpu"))
    fresh = StepBuffers(32, 4, 16, 16, torch.device("cpu"))
    buffers.fill(prompt_rows([list(range(9)), list(range(20))], [[3], [4, 5]]))
    small = prompt_rows([[7, 8]], [[9]])
    buffers.fill(small)
    fresh.fill(small)
    for name, tensor in fresh.rows.tensors().items():
        assert torch.equal(tensor, getattr(buffers.rows, name)), name
    assert torch.equal(fresh.prefix, buffers.prefix)
    assert buffers.rows.q_ptr.tolist() == [0, 2, 2, 2, 2]
    assert buffers.table.page_ptr.tolist() == [0, 1, 1, 1, 1]
    assert (buffers.rows.request[2:] == -1).all()
    assert np.array_equal(buffers.rows.vis[:2].numpy(), [[0, 1, 0, 0], [0, 2, 0, 0]])


def test_bundled_model_is_served() -> None:
    g = geometry_of(load_model("nld-tiny").transformer, 16)
    assert launch.attention_config(16, 1, g.group, g.head_dim, g.page) is launch.SMALL
