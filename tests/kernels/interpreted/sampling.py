"""The sampling read-out against its twin, and the greedy one where nobody samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted.readout import EOS, FIXED, geometry, hard_rows

from recguide_core.kernels.ops import TorchRoundOps
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.sampled_rows import RowNoise
from recguide_core.kernels.sampling_torch import noise_table

TABLE = noise_table()


def drawn(n: int, seed: int, cold: bool = False) -> RowNoise:
    g = torch.Generator().manual_seed(seed)
    heat = torch.rand(n, generator=g) * 1.5 + 0.05
    heat[torch.rand(n, generator=g) < 0.3] = 0.0
    key = torch.randint(-(2**31), 2**31, (n,), generator=g).int()
    return RowNoise(heat * (not cold), key, TABLE)


def both(x: torch.Tensor, noise: RowNoise, multiprocessors: int = 2, eos=(EOS,)):
    n, V = x.shape
    g = geometry(V, eos)
    ops = TritonRoundOps(g, n, 1, "cpu", multiprocessors, exact=True)
    ops.scratch.read_f.fill_(float("nan"))
    ops.scratch.read_i.fill_(-7)
    got, want = ReadoutBuffers.sized(n), ReadoutBuffers.sized(n)
    got.stats.fill_(float("nan"))
    ops.readout(x, got, noise)
    TorchRoundOps(g).readout(x, want, noise)
    return got, want


def finite(x: torch.Tensor) -> torch.Tensor:
    """The twin wants finite logits."""
    return x.clamp_min(-1e4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [300, 5000])
@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_sampled_rows_equal_the_twin(V: int, dtype: torch.dtype, multiprocessors: int) -> None:
    x = finite(hard_rows(V, dtype))
    for seed in range(3):
        got, want = both(x, drawn(len(x), seed), multiprocessors)
        assert torch.equal(got.ids, want.ids)
        assert torch.allclose(got.stats, want.stats, atol=2e-4, rtol=1e-5)


@given(st.integers(0, 10_000), st.sampled_from([130, 1500]), st.integers(1, 40))
@settings(FIXED, max_examples=15)
def test_drawn_rows(seed: int, V: int, multiprocessors: int) -> None:
    """Flat logits, so that the noise decides; several EOS ids, one of which often wins."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4, V, generator=g)
    x[:, 7] += 4.0
    got, want = both(x, drawn(4, seed), multiprocessors, eos=(EOS, 7, 129))
    assert torch.equal(got.ids, want.ids)
    assert torch.allclose(got.stats, want.stats, atol=1e-5, rtol=1e-5)


def test_without_temperature_it_is_the_greedy_read_out() -> None:
    x = hard_rows(3000, torch.float32)
    n, V = x.shape
    ops = TritonRoundOps(geometry(V), n, 1, "cpu", 4, exact=True)
    plain, cold = ReadoutBuffers.sized(n), ReadoutBuffers.sized(n)
    ops.readout(x, plain)
    ops.readout(x, cold, drawn(n, 1, cold=True))
    assert torch.equal(plain.ids, cold.ids)
    assert torch.allclose(plain.stats, cold.stats, atol=1e-6, rtol=1e-6)


def test_temperature_shifts_tokens_but_not_the_model_s_entropy() -> None:
    x = torch.randn(6, 800, generator=torch.Generator().manual_seed(2))
    noise = drawn(6, 3)
    hot = RowNoise(torch.full((6,), 2.0), noise.key, TABLE)
    got, _ = both(x, hot)
    plain, _ = both(x, RowNoise(torch.zeros(6), noise.key, TABLE))
    assert (got.token != plain.token).any()
    assert torch.allclose(got.entropy, plain.entropy, atol=1e-5)
    assert torch.allclose(got.lse, plain.lse, atol=1e-5)


def test_a_broken_row_is_visible() -> None:
    x = torch.randn(2, 300)
    x[0, 50] = float("nan")
    x[1, 60] = float("inf")
    noise = RowNoise(torch.tensor([0.8, 0.8]), torch.tensor([5, 6], dtype=torch.int32), TABLE)
    ops = TritonRoundOps(geometry(300), 2, 1, "cpu", 2, exact=True)
    into = ReadoutBuffers.sized(2)
    ops.readout(x, into, noise)
    assert into.entropy.isnan().all()
