"""T: interpolation between timed shapes, T_C(B) and the marginal price."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.policy import cost
from recguide_core.policy.allocate import bucketed_prices
from recguide_core.policy.cost import (
    AR,
    DRAFT,
    FUSED,
    VERIFY,
    InterpolatedCost,
    Shapes,
    marginal_ms,
    round_ms,
)
from recguide_core.policy.packed import PackedPrices
from recguide_core.policy.ragged import RaggedPrices, grained
from recguide_core.records import StepShape


class Affine:
    """T = base + slope x tokens, whatever the kind."""

    def __init__(self, base: float, slope: float) -> None:
        self.base, self.slope = base, slope

    def ms(self, shapes: Shapes) -> cost.Milliseconds:
        return self.base + self.slope * shapes.query_tokens.astype(np.float64)


class Curved(Affine):
    """Dearer by the token from 100 on, and by what is read."""

    def __init__(self) -> None:
        super().__init__(2.0, 0.01)

    def ms(self, shapes: Shapes) -> cost.Milliseconds:
        beyond = np.maximum(shapes.query_tokens - 100, 0)
        return super().ms(shapes) + 0.02 * beyond + 1e-5 * shapes.kv_tokens


def timed(**changes: object) -> InterpolatedCost:
    rows = {
        "kind": ["draft", "draft", "draft", "draft", "verify", "verify", "verify", "verify"],
        "requests": [1, 4, 1, 4, 1, 4, 1, 4],
        "query_tokens": [8, 32, 16, 64, 8, 32, 16, 64],
        "kv_tokens": [0] * 8,
        "mean_ms": [2.0, 5.0, 3.0, 9.0, 1.0, 4.0, 2.0, 8.0],
        **changes,
    }
    return InterpolatedCost(rows)  # type: ignore[arg-type]


def test_timed_shapes_come_back_exactly() -> None:
    model = timed()
    shapes = Shapes.uniform(DRAFT, [1, 4, 1, 4], [8, 8, 16, 16], 0)
    assert model.ms(shapes) == pytest.approx([2.0, 5.0, 3.0, 9.0])


def test_between_and_beyond_timed_shapes() -> None:
    model = timed()
    # Halfway in requests and in width: mean of the four corners.
    between = model.ms(Shapes.uniform(VERIFY, 2.5, 12, 0))  # truncated to 2 requests
    assert between == pytest.approx([np.interp(2, [1, 4], [1.5, 6.0])])
    # Beyond the widest row the last segment goes on: 1 ms each 8 tokens at one request.
    assert model.ms(Shapes.uniform(VERIFY, 1, 32, 0)) == pytest.approx([4.0])
    # Below the narrowest the first value holds.
    assert model.ms(Shapes.uniform(VERIFY, 1, 2, 0)) == pytest.approx([1.0])


def test_kinds_that_were_not_timed_use_their_relatives() -> None:
    model = timed()
    fused = Shapes.of([StepShape("fused", 4, 64, 0, 16, 1)])
    assert model.ms(fused) == pytest.approx([8.5])  # mean of draft and verify at that shape
    assert fused.kind[0] == FUSED
    assert model.ms(Shapes.uniform(AR, 4, 1, 0)) == pytest.approx([4.0])


def test_plain_ar_is_the_low_end_of_blocks() -> None:
    """A verify row among plain AR rows is a little more than plain AR, not a whole block each."""
    model = InterpolatedCost(
        {
            "kind": ["ar", "verify", "draft"],
            "requests": [4, 4, 4],
            "query_tokens": [4, 20, 20],
            "kv_tokens": [0, 0, 0],
            "mean_ms": [4.0, 12.0, 20.0],
        }
    )
    rows = [StepShape(kind, 4, 8, 0, 5, 0) for kind in ("ar", "verify", "draft")]
    assert model.ms(Shapes.of(rows)) == pytest.approx([4.0, 6.0, 8.0])


def test_prompts_timed_alone_are_priced_by_their_tokens_together() -> None:
    model = InterpolatedCost(
        {
            "kind": ["prefill", "prefill"],
            "requests": [1, 1],
            "query_tokens": [64, 256],
            "kv_tokens": [0, 0],
            "mean_ms": [5.0, 20.0],
        }
    )
    assert model.ms(Shapes.of([StepShape("prefill", 4, 256, 0, 0, 0)])) == pytest.approx([20.0])


def test_mixed_forwards_are_priced_by_their_tokens() -> None:
    model = InterpolatedCost(
        {
            "kind": ["ar", "verify", "fused"],
            "requests": [1, 1, 1],
            "query_tokens": [1, 8, 16],
            "kv_tokens": [0, 0, 0],
            "mean_ms": [1.0, 2.0, 4.0],
        }
    )
    mixed = Shapes.of([StepShape("mixed", 1, q, 0, 8, 0) for q in (1, 8, 12, 16)])
    assert model.ms(mixed) == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_kv_slope_comes_from_rows_that_differ_in_kv_only() -> None:
    model = InterpolatedCost(
        {
            "kind": ["verify"] * 3,
            "requests": [1, 1, 1],
            "query_tokens": [8, 8, 8],
            "kv_tokens": [0, 100, 200],
            "mean_ms": [1.0, 1.5, 2.0],
        }
    )
    assert model.ms(Shapes.uniform(VERIFY, 1, 8, 400)) == pytest.approx([3.0])


def test_round_of_block_one_has_one_forward() -> None:
    model = timed()
    assert round_ms(model, 4, [1, 8, 16]) == pytest.approx([4.0, 9.0, 17.0])


def test_marginal_price_is_the_difference() -> None:
    model = Affine(5.0, 0.25)
    base = Shapes.uniform(VERIFY, [1, 128], 16, 0)
    assert marginal_ms(model, base, 16) == pytest.approx([4.0, 4.0])


def test_no_rows_have_no_price() -> None:
    with pytest.raises(ValueError, match="without rows"):
        InterpolatedCost(
            {k: [] for k in ("kind", "requests", "query_tokens", "kv_tokens", "mean_ms")}
        )


@given(
    base=st.floats(0.1, 50),
    slope=st.floats(1e-4, 1),
    requests=st.integers(1, 200),
    width=st.integers(1, 64),
)
def test_ragged_and_bucketed_prices_agree_where_cost_is_affine(
    base: float, slope: float, requests: int, width: int
) -> None:
    model, menu = Affine(base, slope), np.array([1, 4, 8, 16, 32])
    full = bucketed_prices(model, requests, menu, 0.0)
    # A curve knows every token count up to 256; with the tangent anywhere the prices are exact.
    tokens = min(requests * width, 200) if requests <= 100 else requests
    forwards = np.where(menu == 1, 1.0, 2.0)
    ragged = RaggedPrices(PackedPrices(model), menu)(requests, tokens, 0, forwards)
    assert ragged == pytest.approx(full, rel=1e-6)


@given(requests=st.integers(1, 300), width=st.floats(1, 128), kv=st.integers(0, 10**6))
def test_ragged_prices_come_again_for_shapes_that_are_near(
    requests: int, width: float, kv: int
) -> None:
    """Tokens are told apart by an eighth of a token a request, and K/V tokens are a line."""
    tokens = max(requests, int(requests * width))
    near = grained(requests, tokens)
    assert abs(near - tokens) <= requests / 16
    menu, forwards = np.array([1, 8, 32]), np.array([1.0, 2.0, 1.6])
    prices = RaggedPrices(PackedPrices(Curved()), menu)
    extra = np.array([0.0, 2.0, 4.0])
    fresh = RaggedPrices(PackedPrices(Curved()), menu)
    prices(requests, tokens, 0, forwards, extra)
    again = prices(requests, tokens, kv, forwards, extra)
    assert again == pytest.approx(fresh(requests, tokens, kv, forwards, extra), rel=1e-9)
    assert (again >= prices(requests, tokens, kv, forwards)).all()
    assert (prices(requests, near, kv, forwards, extra) == again).all()


def test_packed_prices_stay_close_to_the_model() -> None:
    model = Affine(3.0, 0.01)
    tokens = np.array([20, 77, 255, 300, 1999, 2560])
    exact = 3.0 + 0.01 * tokens
    assert PackedPrices(model).ms(VERIFY, 20, tokens, 1000) == pytest.approx(exact, rel=1e-6)
