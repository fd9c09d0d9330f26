"""Short exercises of the two skills that everything else needs: copying and one-digit
arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from recguide_core.tiny.corpus.arithmetic import marked
from recguide_core.tiny.corpus.code import PAIR_FUNCTIONS
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


def _result(left: int, operator: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operator]


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


def chains(rng: Random) -> QuestionAnswer:
    """Counting up or down, or a row of the times table: many facts in few tokens."""
    kind, step = rng.choice("+-*"), rng.randint(2, 9)
    if kind == "*":
        last = rng.randint(8, 11)
        pairs = [(n, step) for n in range(1, last + 1)]
        question = f"Multiply {step} by 1 to {last}."
    elif kind == "+":
        first = rng.randint(1, 30)
        pairs = [(first + i * step, step) for i in range(12) if first + (i + 1) * step <= 99]
        question = f"Count up by {step} from {first}."
    else:
        first = rng.randint(40, 99)
        pairs = [(first - i * step, step) for i in range(12) if first - (i + 1) * step >= 1]
        question = f"Count down by {step} from {first}."
    return question, "\n".join(f"{a}{kind}{b}={_result(a, kind, b)}" for a, b in pairs)


def facts(rng: Random) -> QuestionAnswer:
    """Independent small sums without marks."""
    exercises = [_sum(rng) for _ in range(rng.randint(6, 12))]
    question = "Solve: " + ", ".join(f"{a}{op}{b}" for a, op, b in exercises) + "."
    return question, "\n".join(f"{a}{op}{b}={_result(a, op, b)}" for a, op, b in exercises)


def calls(rng: Random) -> QuestionAnswer:
    """Calls of the small functions that the code domain tests, with their results."""
    chosen = rng.sample(PAIR_FUNCTIONS, rng.randint(1, 3))
    lines, shown = [], []
    for _ in range(rng.randint(5, 9)):
        name, _, function = rng.choice(chosen)
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        a, b = (max(a, b), min(a, b)) if name == "subtract" else (a, b)
        shown.append(f"{name}({a}, {b})")
        lines.append(f"{name}({a}, {b}) == {function(a, b)}")
    return "Evaluate: " + ", ".join(shown) + ".", "\n".join(lines)


def comparisons(rng: Random) -> QuestionAnswer:
    """Is a number above or below another, even or odd?"""
    shown, lines = [], []
    for _ in range(rng.randint(6, 10)):
        a, b, sign = rng.randint(1, 9), rng.randint(1, 9), rng.choice(("<", ">", "even"))
        if sign == "even":
            shown.append(f"{a} even")
            lines.append(f"{a} is {'odd' if a % 2 else 'even'}")
            continue
        holds = a > b if sign == ">" else a < b
        shown.append(f"{a} {sign} {b}")
        lines.append(f"{a} {sign} {b} {'yes' if holds else 'no'}")
    return "Decide: " + ", ".join(shown) + ".", "\n".join(lines)


FORMS: dict[str, Callable[[Random], QuestionAnswer]] = {
    "sums": sums,
    "copying": copying,
    "chains": chains,
    "facts": facts,
    "calls": calls,
    "comparisons": comparisons,
}
