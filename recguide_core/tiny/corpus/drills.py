"""Short exercises of the two skills that everything else needs: copying and one-digit
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from recguide_core.tiny.corpus.arithmetic import marked
from recguide_core.tiny.corpus.words import CATEGORIES, ITEMS, NAMES

QuestionAnswer = tuple[str, str]


def _sum(rng: Random) -> tuple[int, str, int]:
    kind = rng.random()
    if kind < 0.4:
        return rng.randint(1, 90), "+", rng.randint(1, 9)
    if kind < 0.7:
        left = rng.randint(3, 99)
        return left, "-", rng.randint(1, min(9, left - 1))
    if kind < 0.9:
        return rng.randint(1, 10), "*", rng.randint(1, 9)
    left = rng.randint(10, 49)
    return left, "+", rng.randint(10, 49)


def sums(rng: Random) -> QuestionAnswer:
    """A row of independent small sums."""
    exercises = [_sum(rng) for _ in range(rng.randint(5, 9))]
    question = "Compute: " + ", ".join(f"{a}{op}{b}" for a, op, b in exercises) + "."
    return question, "\n".join(marked(a, op, b)[1] for a, op, b in exercises)


def copying(rng: Random) -> QuestionAnswer:
    """Words and numbers in random order, one pair a line."""
    words = [*(w for group in CATEGORIES.values() for w in group), *ITEMS, *NAMES]
    pairs = [(rng.choice(words), rng.randint(1, 99)) for _ in range(rng.randint(4, 8))]
    question = "Repeat: " + ", ".join(f"{word} {number}" for word, number in pairs) + "."
    return question, "\n".join(f"{word} = {number}" for word, number in pairs)


FORMS: dict[str, Callable[[Random], QuestionAnswer]] = {"sums": sums, "copying": copying}
