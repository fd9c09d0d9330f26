"""Read-out: ties, MASK, EOS, NaN and infinities, statistics; and the noise of sampling."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recguide_core.kernels.readout_torch import log_probabilities, read_out
from recguide_core.kernels.sampling_torch import (
    SamplingRows,
    filter_scores,
    gumbel_noise,
    perturb,
    uniform_noise,
)

MASK, EOS = 5, 2


def read(*rows, mask=MASK, eos=(EOS,), sampling=None):
    return read_out(torch.tensor(rows, dtype=torch.float32), mask, eos, sampling)


def rows_of(count, *, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, position=None):
    def full(value, dtype):
        return torch.full((count,), value, dtype=dtype)

    return SamplingRows(
        rows=torch.arange(count),
        position=torch.arange(count) if position is None else position,
        seed=full(seed, torch.int64),
        temperature=full(temperature, torch.float32),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        top_k=full(top_k, torch.int64),
    )


def test_ties_go_to_the_lowest_id_in_both_ranks():
    got = read([0.0, 7, 7, 7, 1, 0, 0])
    assert got.token.tolist() == [1]
    assert got.alt.tolist() == [3], "2 ties as well, but is EOS"
    assert got.margin.tolist() == [0.0]


@pytest.mark.parametrize("vocab", [64, 2048, 131072])
def test_ties_far_apart_in_a_wide_vocabulary(vocab):
    """A vectorised argmax must not prefer a later lane."""
    logits = torch.zeros(3, vocab)
    for row, low in enumerate((1, vocab // 3, vocab - 2)):
        logits[row, [low, vocab - 1]] = 9.0
    logits[0, 3] = 9.0
    got = read_out(logits, MASK, (0,))
    assert got.token.tolist() == [1, vocab // 3, vocab - 2]
    assert got.alt.tolist() == [3, vocab - 1, vocab - 1]


def test_all_equal_logits_choose_id_zero_then_the_next_allowed():
    got = read([1.0] * 7, mask=1, eos=(2, 3))
    assert got.token.tolist() == [0]
    assert got.alt.tolist() == [4]


def test_mask_never_wins_nor_takes_part():
    with_mask = read([0.0, 1, 2, 3, 4, 99, 0])
    without = read([0.0, 1, 2, 3, 4, -99, 0])
    assert with_mask.token.tolist() == [4]
    for name in ("confidence", "margin", "entropy"):
        assert torch.equal(getattr(with_mask, name), getattr(without, name))
    assert read([0.0, 1, 2, 3, 4, float("nan"), 0]).entropy.isfinite().all()


def test_eos_counts_in_the_margin_but_is_no_alternative():
    got = read([0.0, 9, 8.9, 3, 0, 0, 0])
    p = torch.tensor([0.0, 9, 8.9, 3, 0, 0]).softmax(0)
    assert got.alt.tolist() == [3]
    assert got.margin.item() == pytest.approx((p[1] - p[2]).item(), abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_row_that_is_not_finite_marks_itself_only(bad, place):
    broken = [0.0, 1, 2, 3, 4, 0, 1]
    broken[place] = bad
    got = read([0.0, 1, 2, 3, 4, 0, 1], broken, [0.0, 1, 2, 3, 4, 0, 1])
    assert got.entropy.isnan().tolist() == [False, True, False]
    assert got.token.tolist()[::2] == [4, 4]
    assert all(0 <= t < 7 for t in got.token.tolist())


@given(hnp.arrays(np.float32, (4, 9), elements=st.floats(-30, 30, width=32)))
@settings(max_examples=60, deadline=None)
def test_statistics_equal_float64(logits):
    got = read_out(torch.from_numpy(logits.copy()), MASK, (EOS, 7))
    kept = np.delete(logits.astype(np.float64), MASK, axis=1)
    p = np.exp(kept - kept.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    ids = np.delete(np.arange(9), MASK)
    ranked = np.sort(p, axis=1)[:, ::-1]
    assert got.token.tolist() == ids[kept.argmax(1)].tolist()
    assert np.allclose(got.confidence, ranked[:, 0], atol=2e-6)
    assert np.allclose(got.margin, ranked[:, 0] - ranked[:, 1], atol=4e-6)
    assert np.allclose(got.entropy, -(p * np.log(p + 1e-300)).sum(1), atol=1e-4)
    for row in range(4):
        allowed = [i for i in ids if i not in (EOS, 7, got.token[row])]
        best = max(logits[row, allowed])
        assert got.alt[row] == next(i for i in allowed if logits[row, i] == best)


def test_entropy_of_a_certain_row_is_not_negative():
    assert (read([0.0, 80, 0, 0, 0, 0, 0]).entropy >= 0).all()


def test_log_probabilities_are_ranked_with_ties_by_id():
    logits = torch.tensor([[1.0, 3, 3, 0]])
    logp, ids, values = log_probabilities(logits, torch.tensor([2]), 3)
    assert ids.tolist() == [[1, 2, 0]]
    assert logp.item() == pytest.approx(values[0, 1].item())
    assert values[0].exp().sum() < 1


# -- noise ----------------------------------------------------------------------------------


def test_uniform_noise_stays_inside_the_open_interval():
    """These draws hold the largest value there is; its noise must be finite."""
    seed, position, token = [6, 8, 14], [436, 534, 907], [94233, 61566, 122102]
    u = uniform_noise(torch.tensor(seed), torch.tensor(position), 131072)
    extreme = u[range(3), token]
    assert (extreme > 0.999999).all()
    assert u.min() > 0
    assert u.max() < 1
    assert gumbel_noise(torch.tensor(seed), torch.tensor(position), 131072).isfinite().all()


def test_noise_is_a_function_of_seed_and_position_alone():
    seed, position = torch.tensor([3, 3, 4]), torch.tensor([10, 11, 10])
    together = gumbel_noise(seed, position, 100)
    for i in range(3):
        assert torch.equal(together[i], gumbel_noise(seed[i : i + 1], position[i : i + 1], 100)[0])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together[0], together[2])
    wide = gumbel_noise(torch.tensor([2**40 + 3]), torch.tensor([10]), 100)
    assert not torch.equal(wide[0], together[0]), "the high half of a seed counts"


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("by", ["position", "seed"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_gumbel_max_draws_from_softmax(by, temperature):
    """20000 draws over positions, or over seeds, against softmax(z / T): chi-square, 9 freedoms."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, 1.2, 0.3, -0.2])
    draws = 20000
    rows = rows_of(draws, temperature=temperature, seed=11)
    if by == "seed":
        rows.seed, rows.position = torch.arange(draws), torch.full((draws,), 7)
    tokens = perturb(logits.expand(draws, -1), rows).argmax(1)
    counts = np.bincount(tokens.numpy(), minlength=10)
    expected = (logits / temperature).softmax(0).numpy() * draws
    assert chi_square(counts, expected) < 33.7, "p < 1e-4 under the right law"


def test_neighbouring_positions_draw_independently():
    """Pairs of draws at positions 2i, 2i + 1 against the product law (24 freedoms)."""
    logits = torch.tensor([1.0, 0.5, 0.0, -0.3, 0.8])
    tokens = perturb(logits.expand(40000, -1), rows_of(40000, seed=5)).argmax(1).numpy()
    pairs = np.bincount(tokens[::2] * 5 + tokens[1::2], minlength=25)
    p = logits.softmax(0).numpy()
    assert chi_square(pairs, np.outer(p, p).ravel() * 20000) < 62.0


def test_extreme_tail_follows_the_law_of_the_maximum():
    """The largest noise of 2048 tokens: P(max < x) = exp(-2048 exp(-x)), Kolmogorov distance."""
    top = gumbel_noise(torch.zeros(4000, dtype=torch.int64), torch.arange(4000), 2048).amax(1)
    ordered = np.sort(top.double().numpy())
    law = np.exp(-2048 * np.exp(-ordered))
    assert np.abs(law - (np.arange(4000) + 0.5) / 4000).max() < 1.95 / 4000**0.5


# -- filters --------------------------------------------------------------------------------


def kept(logits, **options) -> list[int]:
    scores = torch.tensor([logits])
    filtered = filter_scores(scores, rows_of(1, **options))
    return (filtered[0] > -1e20).nonzero()[:, 0].tolist()


def test_filters_keep_what_they_say():
    p = [0.4, 0.3, 0.2, 0.07, 0.03]
    logits = np.log(p).tolist()
    assert kept(logits, top_k=2) == [0, 1]
    assert kept(logits, top_p=0.69) == [0, 1]
    assert kept(logits, top_p=0.71) == [0, 1, 2]
    assert kept(logits, min_p=0.49) == [0, 1, 2]
    assert kept(logits, min_p=0.51) == [0, 1]
    assert kept(logits, top_k=4, top_p=0.95, min_p=0.7) == [0, 1]
    assert kept(logits, top_p=1e-6) == [0]
    assert kept(logits, top_k=99) == [0, 1, 2, 3, 4]
    assert kept([1.0, 1.0, 1.0], top_k=2) == [0, 1], "ties keep the lower ids"


def test_a_row_without_filters_is_untouched_beside_one_with():
    """Sampling alone or in a batch must be the same draw, down to the last tail token."""
    scores = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)) * 4
    rows = rows_of(2)
    rows.top_k[1] = 3
    assert torch.equal(filter_scores(scores, rows)[0], scores[0])


def test_filtered_tokens_are_never_drawn():
    logits = torch.randn(4000, 50, generator=torch.Generator().manual_seed(1))
    tokens = perturb(logits, rows_of(4000, top_k=3)).argmax(1)
    rank = (logits > logits.gather(1, tokens[:, None])).sum(1)
    assert rank.max() == 2


def test_no_alternative_when_the_filters_leave_one_token():
    got = read([0.0, 1, 2, 9, 4, 0, 1], sampling=rows_of(1, top_k=1))
    assert got.token.tolist() == [3]
    assert got.alt.tolist() == [-1]
    hot = read([0.0, 1, 2, 9, 4, 0, 1], sampling=rows_of(1, top_k=1, temperature=50.0))
    assert hot.token.tolist() == [3]
    assert hot.alt.tolist() == [-1]
