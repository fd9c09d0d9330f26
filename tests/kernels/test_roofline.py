"""Floors against hand-computed figures of NLD-8B on an H200."""

from __future__ import annotations

import pytest

from recguide_core.errors import UsageError
from recguide_core.kernels.roofline import Shape, forward_floor, gpu, layer_weights, ridge_tokens
from recguide_core.model.published import published_config

NLD = published_config("nld-8b")
H200 = gpu("h200")


def total(shape: Shape) -> float:
    return forward_floor(NLD, shape, H200)[-1].ms


def test_published_floor() -> None:
    """3.7 ms of weight streaming; the ridge at 183 query tokens."""
    weights = (layer_weights(NLD) * 34 + 131072 * 4096) * 2
    assert weights == pytest.approx(15.9e9, rel=0.01)
    assert weights / H200.bandwidth * 1e3 == pytest.approx(3.70, abs=0.01)
    assert ridge_tokens(NLD, H200) == pytest.approx(183, abs=1)
    assert total(Shape(1, 16, 800)) == pytest.approx(3.73, abs=0.02)
    assert total(Shape(32, 16, 800)) == pytest.approx(11.3, abs=0.1)


def test_rows_of_a_forward() -> None:
    assert Shape(1, 16, 800, 3).query_tokens == 64
    assert Shape(8, 8, 800).query_tokens == 64
    assert Shape(4, 16, 0, 2, draft=True).adapter_tokens == 4 * 16 * 3


def test_branches_are_nearly_free_below_the_ridge_only() -> None:
    free = total(Shape(1, 16, 800, 3)) / total(Shape(1, 16, 800))
    dear = total(Shape(8, 16, 800, 3)) / total(Shape(8, 16, 800))
    assert free < 1.02 < 2 < dear


def test_floors_never_shrink_with_size() -> None:
    for grow in (Shape(2, 16, 800), Shape(1, 32, 800), Shape(1, 16, 1600), Shape(1, 16, 800, 1)):
        assert total(grow) > total(Shape(1, 16, 800))


def test_parts_add_up() -> None:
    *parts, whole = forward_floor(NLD, Shape(4, 16, 2048, 3), H200)
    assert whole.ms == pytest.approx(sum(p.ms for p in parts))
    assert all(p.ms == max(p.bytes_ms, p.flops_ms) for p in parts)
    prefix = next(p for p in parts if p.part == "prefix attention")
    assert prefix.bytes == 4 * 2048 * 4096 * 34
    assert prefix.flops == 4 * 256 * 32 * 128 * 2048 * 34


def test_unknown_gpu() -> None:
    with pytest.raises(UsageError, match="Did you mean 'h200'"):
        gpu("h20")
