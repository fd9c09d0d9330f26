"""Every way to multiply gives the plain product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from recguide_core.model import products
from recguide_core.model.products import Product, laid_out, packed
from recguide_core.model.registry import load_model


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (37, 19), (1, 5)])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 17, 128, 130, 512, 1030])
@pytest.mark.parametrize("pack", [False, True])
def test_a_product_is_the_plain_product(shape: tuple[int, int], tokens: int, pack: bool) -> None:
    weight = matrix(*shape)
    x = torch.randn(tokens, shape[1], generator=torch.Generator().manual_seed(7))
    product = Product(laid_out(weight), pack=pack)
    assert product(x).shape == (tokens, shape[0])
    torch.testing.assert_close(product(x), F.linear(x, weight), rtol=1e-5, atol=1e-5)


def test_tall_matrices_lie_column_by_column_and_keep_their_values() -> None:
    tall, wide = matrix(48, 32), matrix(32, 48)
    assert laid_out(tall).stride() == (1, 48)
    assert torch.equal(laid_out(tall), tall)
    assert laid_out(wide) is wide


def test_slices_and_strided_inputs() -> None:
    product = Product(matrix(24, 16), pack=True)
    wide = torch.randn(9, 40)
    x = wide[:, 3:19]
    torch.testing.assert_close(product(x), F.linear(x, product.weight))


def test_blocked_products_meet_few_token_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count costs memory for good: a server that has met all of them must not keep growing."""
    met = set()

    def watched(x: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
        met.add(x.shape[0])
        return F.linear(x, blocked)

    monkeypatch.setattr(products, "_blocked", watched)
    product = Product(matrix(24, 16), pack=False)
    product.blocked = product.weight
    for tokens in range(1100):
        x = torch.full((tokens, 16), 1.0 + tokens % 5)
        torch.testing.assert_close(product(x), F.linear(x, product.weight))
    assert len(met) <= 66 and max(met) == 512


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 9, 65, 130])
@pytest.mark.parametrize("keep", [False, True])
def test_spare_rows_change_nothing_and_nobody_sees_them(
    monkeypatch: pytest.MonkeyPatch, tokens: int, keep: bool
) -> None:
    """Rows that fill a forward up to a blocked count are in no attention and in no result."""
    from recguide_core.model import transformer

    class Values:
        """Attention that gives back its values, for as many rows as it was told of."""

        def attend(self, layer, q, k, v):
            assert len(q) == len(k) == len(v) == tokens
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).reshape(tokens, -1)

    model = load_model("nld-tiny").transformer
    ids = torch.arange(tokens) % 200 + 8
    results = []
    for readout in (None, torch.arange(0, tokens, 2)):
        batch = transformer.TokenBatch(ids, torch.arange(tokens), None, readout, keep)
        with torch.inference_mode():
            filled = model.forward(batch, Values())
            monkeypatch.setattr(transformer, "spare_rows", lambda n: 0)
            plain = model.forward(batch, Values())
            monkeypatch.undo()
        torch.testing.assert_close(filled, plain)
        results.append(filled)
    whole, read = results
    assert whole.shape[0] == tokens
    torch.testing.assert_close(read, whole if keep else whole[::2])


def test_other_dtypes_and_large_models_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed(matrix(8, 8).bfloat16()) is None
    if packed(matrix(8, 8)) is None:
        pytest.skip("needs torch built with oneDNN")
    assert load_model("nld-tiny").transformer._head.blocked is not None
    from recguide_core.model import transformer

    monkeypatch.setattr(transformer, "PACK_BYTES", 1 << 20)
    assert load_model("nld-tiny").transformer._head.blocked is None


@pytest.mark.parametrize("fault", [AttributeError, RuntimeError, None])
def test_a_missing_or_wrong_operator_is_not_relied_on(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception] | None
) -> None:
    def broken(x: torch.Tensor, blocked: torch.Tensor) -> torch.Tensor:
        if fault is not None:
            raise fault("no such operator")
        return torch.zeros(len(x), 8)

    monkeypatch.setattr(products, "_blocked", broken)
    assert packed(matrix(8, 8)) is None
