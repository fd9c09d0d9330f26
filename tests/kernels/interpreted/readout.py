"""Read-out kernel against the twin and a sort in float64, ties and NLD's token rules included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.kernels import launch
from recguide_core.kernels.ops import Geometry, TorchRoundOps
from recguide_core.kernels.ops_triton import TritonRoundOps
from recguide_core.kernels.round_state import ReadoutBuffers

MASK, EOS = 100, 11
FIXED = settings(deadline=None, derandomize=True, database=None)


def geometry(vocab: int, eos: tuple[int, ...] = (EOS,)) -> Geometry:
    return Geometry(2, 1, 64, vocab, 16, MASK, eos)


def run(logits: torch.Tensor, multiprocessors: int = 2, eos: tuple[int, ...] = (EOS,)):
    n, V = logits.shape
    ops = TritonRoundOps(geometry(V, eos), n, 1, "cpu", multiprocessors, exact=True)
    ops.scratch.read_f.fill_(float("nan"))
    ops.scratch.read_i.fill_(-7)
    into = ReadoutBuffers.sized(n)
    into.stats.fill_(float("nan"))
    ops.readout(logits, into)
    return into


def truth(logits: torch.Tensor, eos: tuple[int, ...] = (EOS,)):
    """float64, by a stable sort: ids [n, 2], stats [n, 5]."""
    z = logits.double().clone()
    z[:, MASK] = float("-inf")
    order = z.sort(dim=1, descending=True, stable=True).indices
    token = order[:, 0]
    rest = z.clone()
    rest[:, list(eos)] = float("-inf")
    rest.scatter_(1, token[:, None], float("-inf"))
    alt = rest.sort(dim=1, descending=True, stable=True).indices[:, 0]
    p = z.softmax(1)
    best = p.gather(1, order[:, :2])
    entropy = -torch.where(p > 0, p * p.log(), 0.0).sum(1)
    columns = [best[:, 0], best[:, 1], best[:, 0] - best[:, 1], entropy, z.logsumexp(1)]
    return torch.stack([token, alt], 1), torch.stack(columns, 1)


def hard_rows(V: int, dtype: torch.dtype) -> torch.Tensor:
    x = (torch.randn(7, V, generator=torch.Generator().manual_seed(V)) * 3).to(dtype)
    x[0, MASK] = 60
    x[1, EOS] = 60
    x[2, EOS] = x[2].max()
    x[3, 5] = x[3, EOS] = x[3, 250] = 40
    x[4, EOS], x[4, 7], x[4, MASK] = 30, 31, 99
    x[5, MASK] = x[5, EOS] = float("-inf")
    x[6] = 2.0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [300, 5000])
@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_rules_and_ties(V: int, dtype: torch.dtype, multiprocessors: int) -> None:
    x = hard_rows(V, dtype)
    got, (ids, stats) = run(x, multiprocessors), truth(x)
    assert torch.equal(got.ids.long(), ids)
    assert torch.allclose(got.stats.double(), stats, atol=3e-6, rtol=1e-6)


def test_published_vocabulary() -> None:
    x = hard_rows(131072, torch.bfloat16)[:4]
    got, (ids, stats) = run(x, 4), truth(x)
    assert torch.equal(got.ids.long(), ids)
    assert torch.allclose(got.stats.double(), stats, atol=3e-6, rtol=1e-6)


def test_twin_follows_the_same_rules() -> None:
    x = hard_rows(3000, torch.float32)
    # The twin wants finite logits: it marks rows with infinite ones as broken.
    x[5, MASK] = x[5, EOS] = -1e4
    into = ReadoutBuffers.sized(len(x))
    TorchRoundOps(geometry(3000)).readout(x, into)
    got = run(x)
    assert torch.equal(got.ids, into.ids)
    # The twin forms its entropy from numbers of the size of the logits, here up to 60.
    assert torch.allclose(got.stats, into.stats, atol=2e-4, rtol=1e-5)


def test_several_eos_ids() -> None:
    x = hard_rows(500, torch.float32)
    eos = (EOS, 5, 250)
    got, (ids, stats) = run(x, eos=eos), truth(x, eos)
    assert torch.equal(got.ids.long(), ids)
    assert torch.allclose(got.stats.double(), stats, atol=3e-6, rtol=1e-6)


def test_without_an_alternative() -> None:
    x = torch.full((1, 300), float("-inf"))
    x[0, 7] = 1.0
    got = run(x)
    assert got.ids.tolist() == [[7, -1]]
    assert got.stats[0].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_a_broken_row_is_visible() -> None:
    x = torch.randn(2, 300)
    x[0, 50] = float("nan")
    x[1, 60] = float("inf")
    assert run(x).entropy.isnan().all()


@given(st.integers(0, 10_000), st.sampled_from([130, 1500]), st.integers(1, 40))
@settings(FIXED, max_examples=15)
def test_coarse_logits(seed: int, V: int, multiprocessors: int) -> None:
    """Logits on a grid of eighths, as bf16 has them: exact ties are the normal case."""
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, V, generator=g) * 8).round() / 8
    got, (ids, stats) = run(x, multiprocessors), truth(x)
    assert torch.equal(got.ids.long(), ids)
    assert torch.allclose(got.stats.double(), stats, atol=3e-6, rtol=1e-6)


def test_splits_cover_the_vocabulary() -> None:
    for rows in (1, 7, 64, 4096):
        for V in (300, 131072):
            splits = launch.readout_splits(rows, V, 132)
            assert 1 <= splits <= launch.MAX_SPLITS
