"""Exact, near-tie or different: each verdict and the evidence for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.bench.bits import guarantee
from recguide_core.bench.lossless import TIE_GAP, classify, first_difference

PROMPT = np.array([1, 2, 3])


def never(_text):
    raise AssertionError("no replay is needed")


def test_equal_texts_are_exact_without_a_replay():
    assert classify(PROMPT, [4, 5], [4, 5], never).kind == "exact"


@pytest.mark.parametrize(
    ("gap", "kind"), [(0.0, "near-tie"), (0.9e-4, "near-tie"), (1.1e-4, "different")]
)
def test_a_tie_needs_a_replay_that_proves_it(gap, kind):
    asked = []

    def best_after(text):
        asked.append(text.tolist())
        return {5: -0.7, 6: -0.7 - gap, 9: -3.0}

    verdict = classify(PROMPT, [4, 5, 8], [4, 6, 9], best_after)
    assert verdict.kind == kind
    assert asked == [[1, 2, 3, 4]]
    assert verdict.record() == {
        "position": 1,
        "expected": 5,
        "got": 6,
        "gap": pytest.approx(gap, abs=1e-12),
    }


def test_both_tokens_must_be_close_to_the_best():
    # The two tokens tie with each other but AR prefers a third: no tie explains the text.
    verdict = classify(PROMPT, [5], [6], lambda text: {9: -0.1, 5: -2.0, 6: -2.0})
    assert verdict.kind == "different"


def test_a_token_that_is_not_among_the_best_is_different():
    verdict = classify(PROMPT, [5], [600], lambda text: {5: -0.1, 6: -0.1})
    assert (verdict.kind, verdict.evidence.gap) == ("different", None)


@pytest.mark.parametrize(("expected", "got"), [([4, 5], [4]), ([4], [4, 5])])
def test_another_end_is_different(expected, got):
    verdict = classify(PROMPT, expected, got, never)
    assert verdict.kind == "different"
    assert -1 in (verdict.evidence.expected, verdict.evidence.got)


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_first_difference_agrees_with_a_plain_loop(a, b):
    slow = next((i for i in range(max(len(a), len(b))) if a[i : i + 1] != b[i : i + 1]), None)
    assert first_difference(a, b) == slow


def test_the_gap_is_the_one_of_the_issue():
    assert TIE_GAP == 1e-4


def test_a_row_promises_no_more_than_was_compared():
    same = {"outputs": 2, "tokens": 9, "differing": 0}
    assert guarantee({"lossless": None}) == "unchecked"
    assert guarantee({"lossless": "exact", "bitwise": None}) == "exact"
    assert guarantee({"lossless": "exact", "bitwise": same}) == "bitwise"
    assert guarantee({"lossless": "exact", "bitwise": {**same, "differing": 1}}) == "exact"
    assert guarantee({"lossless": "near-tie", "bitwise": same}) == "near-tie"
