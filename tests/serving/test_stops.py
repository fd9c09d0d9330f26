"""Stop strings against a search written the slow way, whatever the pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide_core.serving.stops import StopFinder
from recguide_core.serving.streaming import TextStream

ALPHABET = "ab \n"
TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4)


class Letters:
    """A decoder whose tokens are indices into a list of pieces."""

    def __init__(self, pieces):
        self.pieces = pieces

    def feed(self, token):
        return self.pieces[token]

    def flush(self):
        return ""


def cut_slowly(text, stops):
    """Text before the stop that ends first (the longest of those that end together)."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


def pieces_of(text, cuts):
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_any_cutting_gives_the_same_text(text, stops, cuts):
    pieces = pieces_of(text, cuts)
    stream, shown = TextStream(Letters(pieces), stops), ""
    for token in range(len(pieces)):
        stopped = stream.feed(token)
        shown += stream.take()
        if stopped:
            break
    shown += stream.finish()
    assert (shown, stream.stopped) == cut_slowly(text, stops)


@given(TEXTS, STOPS)
def test_what_was_shown_is_never_taken_back(text, stops):
    expected, _ = cut_slowly(text, stops)
    stream, shown = TextStream(Letters(list(text)), stops), ""
    for token in range(len(text)):
        if stream.feed(token):
            break
        shown += stream.take()
        assert expected.startswith(shown)


@pytest.mark.parametrize(
    ("text", "held"), [("abc", 0), ("xEN", 2), ("xE", 1), ("EN", 2), ("", 0), ("ENDx", 0)]
)
def test_held_is_the_longest_possible_beginning(text, held):
    assert StopFinder(["END"]).held(text) == held


def test_the_stop_that_ends_first_wins():
    finder = StopFinder(["abcd", "bc"])
    assert finder.find("xabcd", 5) == 2
    assert StopFinder(["abc", "bc"]).find("xabc", 4) == 1
