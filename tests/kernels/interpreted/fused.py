"""RoPE with the K/V write, and the masked draft adapter, against their twins."""

from __future__ import annotations

import pytest
import torch

from recguide_core.kernels.ops import Geometry, PageTable, Rotation, TorchRoundOps
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kernels.round_state import PackedRows

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("heads", "kv_heads", "D"), [(4, 2, 64), (32, 8, 128), (6, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotate_and_store(page: int, heads: int, kv_heads: int, D: int, dtype) -> None:
    geometry = Geometry(heads, kv_heads, D, 100, page, 0, (1,))
    T = 9
    rows = PackedRows.sized(T, 2)
    rows.request.copy_(torch.tensor([0, 0, 0, 0, 1, 1, 1, -1, -1]))
    rows.commit.copy_(torch.tensor([1, 1, 0, 0, 1, 1, 0, 0, 1]))
    rows.pos.copy_(torch.tensor([14, 15, 16, 17, 0, 1, 2, 0, 0]))
    per = 32 // page
    pages = torch.randperm(2 * per + 2, generator=torch.Generator().manual_seed(3)).int()
    table = PageTable(pages, torch.tensor([0, per, 2 * per], dtype=torch.int32), page)
    angle = normal(T, D // 2, seed=1)
    rotation = Rotation(angle.cos(), angle.sin(), 1 + 0.1 * normal(T, seed=2).abs())
    slots = (2 * per + 2) * page
    results = []
    kernel = TritonRoundOps(geometry, T, 2, "cpu", 4, exact=True)
    for ops in (TorchRoundOps(geometry), kernel):
        qkv = normal(T, (heads + 2 * kv_heads) * D, seed=4, dtype=dtype)
        pools = [torch.full((slots, kv_heads, D), float("nan"), dtype=dtype) for _ in range(2)]
        ops.rotate_and_store(qkv, rotation, rows, table, *pools)
        results.append((qkv, *pools))
    for want, got in zip(*results, strict=True):
        assert torch.equal(want.isnan(), got.isnan()), "the wrong slots were written"
        assert torch.allclose(want.float().nan_to_num(), got.float().nan_to_num(),
                              atol=TOLERANCE[dtype])  # fmt: skip
    written = (~results[0][1].isnan()).any(-1).any(-1).sum()
    assert int(written) == 4


@pytest.mark.parametrize("rank", [16, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masked_adapter(rank: int, dtype: torch.dtype) -> None:
    T, K, hidden = 37, 512, 256
    adapter = torch.zeros(T, dtype=torch.int32)
    adapter[3:9] = 1
    adapter[33] = 1
    x = normal(T, K, seed=1, dtype=dtype)
    x[20] = float("nan")
    down, up = normal(rank, K, seed=2, dtype=dtype) / 23, normal(hidden, rank, seed=3, dtype=dtype)
    geometry = Geometry(4, 2, 64, 100, 16, 0, (1,))
    kernel = TritonRoundOps(geometry, T, 1, "cpu", 4, exact=dtype != torch.float16, rank=rank)
    kernel.scratch.low.fill_(float("nan"))
    outs = []
    for ops in (TorchRoundOps(geometry), kernel):
        out = normal(T, hidden, seed=5, dtype=dtype)
        ops.add_adapter(out, x, down, up, adapter)
        outs.append(out)
    before = normal(T, hidden, seed=5, dtype=dtype)
    off = adapter == 0
    assert torch.equal(outs[1][off], before[off])
    assert not torch.equal(outs[1][~off], before[~off])
    scale = outs[0].float().abs().max()
    assert (outs[0].float() - outs[1].float()).abs().max() <= TOLERANCE[dtype] * scale
