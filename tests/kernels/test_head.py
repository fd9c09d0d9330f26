"""Chunked output head: same results, bounded memory."""

from __future__ import annotations

import pytest
import torch

from recguide_core.kernels import launch
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import Geometry, TorchRoundOps
from recguide_core.kernels.round_state import ReadoutBuffers

GEOMETRY = Geometry(4, 2, 64, 500, 16, 3, (2,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_change_nothing(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(500, 32, generator=g).to(dtype)
    hidden = torch.randn(70, 32, generator=g).to(dtype)
    ops = TorchRoundOps(GEOMETRY)
    whole, parts = ReadoutBuffers.sized(70), ReadoutBuffers.sized(70)
    OutputHead(weight, 70).run(ops, hidden, whole)
    small = OutputHead(weight, 70, budget=16 * (500 * 4 + launch.READOUT_PARTIAL_BYTES))
    assert small.rows == 16
    small.run(ops, hidden, parts)
    assert torch.equal(whole.ids, parts.ids)
    assert torch.allclose(whole.stats, parts.stats, atol=1e-6)


def test_extra_memory_of_the_largest_batch() -> None:
    """C = 128, B = 32 over NLD's vocabulary: 4096 rows would be 2 GiB of logits."""
    with torch.device("meta"):
        head = OutputHead(torch.empty(131072, 4096, dtype=torch.bfloat16), 128 * 32)
    assert head.extra_bytes <= 256 * 2**20
    assert head.rows >= 480
    assert head.logits.shape == (head.rows, 131072)


def test_no_call_holds_more_than_a_chunk() -> None:
    seen = []

    class Spy(TorchRoundOps):
        def readout(self, logits, into, noise=None) -> None:
            seen.append(tuple(logits.shape))

    head = OutputHead(torch.randn(500, 8), 40, budget=9 * (2000 + launch.READOUT_PARTIAL_BYTES))
    head.run(Spy(GEOMETRY), torch.randn(40, 8), ReadoutBuffers.sized(40))
    assert seen == [(9, 500)] * 4 + [(4, 500)]
