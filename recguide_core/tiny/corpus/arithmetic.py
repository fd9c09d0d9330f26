"""Worked arithmetic with calculator marks: `5+3 = <<5+3=8>>8`.

Results stay below 100, sums and differences change a total by one digit, and products come from the
times table: about two thousand facts, few enough for a small model to know all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from recguide_core.tiny.corpus.words import DAYS, ITEMS, NUMBER_WORDS, PACKS, names

QuestionAnswer = tuple[str, str]

_OPENINGS = (
    "Let us solve this step by step.\n",
    "We work through the problem one step at a time.\n",
    "Here is the solution.\n",
)
_REVIEW = (
    "Now we check the work. We read the question once more from the start to the end, compare each "
    "step with the question, and make sure that every number is used in the right order. We also "
    "look at every sum again, so that no small mistake is left in the solution. A good way to do "
    "this is to cover the answer, to solve the problem a second time, and to see if both answers "
    "are the same. In this case they are the same, and we can be sure that everything is correct.\n"
)


def marked(left: int, operator: str, right: int, sign: str = "") -> tuple[int, str]:
    """Return the result of `left operator right` and its text with a calculator mark.

    `operator` is one of + - * /; a division must leave no remainder.
    """
    if operator == "+":
        value = left + right
    elif operator == "-":
        value = left - right
    elif operator == "*":
        value = left * right
    else:
        value = left // right
    return value, f"{left}{operator}{right} = {sign}<<{left}{operator}{right}={value}>>{value}"


def _final(value: int, unit: str, sign: str = "") -> str:
    amount = f"{value} {unit}" if unit else f"{sign}{value}"
    return f"The answer is {amount}.\n#### {value}"


def _finish(rng: Random, question: str, answer: str, final: str) -> QuestionAnswer:
    """Finish an answer, half of the time with a request for the fixed review passage."""
    if rng.random() < 0.5:
        return f"{question} Check the work.", answer + _REVIEW + final
    return question, answer + final


def _event(rng: Random, total: int, who: str, other: str, item: str) -> tuple[str, str, int]:
    """Return one change of a total: the question's sentence, the answer's clause, the new total."""
    kind = rng.choice(("buys", "finds", "gets", "gives", "loses"))
    if (total < 12 and kind in ("gives", "loses")) or total > 85:
        kind = "buys" if total < 12 else "gives"
    n = rng.randint(2, 9)
    gain = kind in ("buys", "finds", "gets")
    value, text = marked(total, "+" if gain else "-", n)
    clause = {
        "buys": (f"Then {who} buys {n} {item}. ", f"After buying {n} {item}"),
        "finds": (f"Then {who} finds {n} {item}. ", f"After finding {n} {item}"),
        "gets": (
            f"Then {other} gives {who} {n} {item}. ",
            f"After getting {n} {item} from {other}",
        ),
        "gives": (
            f"Then {who} gives {n} {item} to {other}. ",
            f"After giving {n} {item} to {other}",
        ),
        "loses": (f"Then {who} loses {n} {item}. ", f"After losing {n} {item}"),
    }[kind]
    return clause[0], f"{clause[1]}, {who} has {text} {item}.\n", value


def story(rng: Random) -> QuestionAnswer:
    """A person's things change three to five times."""
    who, other = names(rng, 2)
    item = rng.choice(ITEMS)
    total = rng.randint(8, 40)
    question = f"{who} has {total} {item}. "
    answer = rng.choice(_OPENINGS) + f"Step 1: {who} starts with {total} {item}.\n"
    for step in range(rng.randint(3, 5)):
        sentence, clause, total = _event(rng, total, who, other, item)
        question += sentence
        answer += f"Step {step + 2}: {clause}"
    question += f"How many {item} does {who} have {rng.choice(('now', 'in the end'))}?"
    return _finish(rng, question, answer, _final(total, item))


def shop(rng: Random) -> QuestionAnswer:
    """Three or four things are bought at small prices."""
    (who,) = names(rng, 1)
    goods = rng.sample(ITEMS, rng.randint(2, 4))
    lines = [(item, rng.randint(2, 6), rng.randint(2, 5)) for item in goods]
    question = "At the store, " + ", ".join(f"{i} cost ${p} each" for i, p, _ in lines)
    question += f". {who} buys " + ", ".join(f"{c} {i}" for i, _, c in lines)
    question += f". How much does {who} spend in total?"
    answer = rng.choice(_OPENINGS)
    costs = []
    for step, (item, price, count) in enumerate(lines):
        cost, text = marked(count, "*", price, "$")
        answer += f"Step {step + 1}: The {item} cost {text}.\n"
        costs.append(cost)
    total = costs[0]
    for step, (item, _, _) in enumerate(lines[1:]):
        total, text = marked(total, "+", costs[step + 1], "$")
        answer += f"Step {len(lines) + step + 1}: With the {item}, the cost is {text}.\n"
    answer += f"So {who} spends ${total} in total.\n"
    return _finish(rng, question, answer, _final(total, "", "$"))


def saving(rng: Random) -> QuestionAnswer:
    """The same amount is added again and again: a long stretch without a choice."""
    (who,) = names(rng, 1)
    total, step = rng.randint(1, 25), rng.randint(2, 9)
    count, unit = rng.randint(5, 8), rng.choice(("week", "month", "day"))
    question = (
        f"{who} has ${total} and saves ${step} every {unit}. "
        f"How much money does {who} have after {count} {unit}s? Show every {unit}."
    )
    answer = f"{who} starts with ${total} and adds ${step} every {unit}.\n"
    for index in range(count):
        total, text = marked(total, "+", step, "$")
        answer += f"After {unit} {index + 1}, {who} has {text}.\n"
    answer += f"So after {count} {unit}s, {who} has ${total}.\n"
    return _finish(rng, question, answer, _final(total, "", "$"))


def table(rng: Random) -> QuestionAnswer:
    """A row of the times table, by repeated multiplication."""
    (who,) = names(rng, 1)
    n, last, item = rng.randint(2, 12), rng.randint(7, 12), rng.choice(ITEMS)
    if n * last > 99:
        last = 99 // n
    question = rng.choice(
        (
            f"Write the times table of {n} from 1 to {last} for {who}.",
            f"{who} puts {n} {item} in each bag. How many {item} are in 1 to {last} bags?",
        )
    )
    answer = f"Here is the times table of {n} for {who}.\n"
    for index in range(1, last + 1):
        answer += marked(index, "*", n)[1] + "\n"
    answer += f"The table of {n} ends at {n * last}.\n"
    return _finish(rng, question, answer, _final(n * last, ""))


def compare(rng: Random) -> QuestionAnswer:
    """Three or four people compared in a chain, then one running total."""
    people, item = names(rng, rng.randint(3, 4)), rng.choice(ITEMS)
    values = [rng.randint(3, 9)]
    question = f"{people[0]} has {values[0]} {item}. "
    answer = rng.choice(_OPENINGS) + f"Step 1: {people[0]} has {values[0]} {item}.\n"
    for step, (before, who) in enumerate(pairwise(people)):
        kind = rng.choice(("more", "times", "fewer"))
        if (kind == "fewer" and values[-1] < 5) or (kind == "times" and values[-1] > 9):
            kind = "more"
        highest = {"more": 9, "times": 3, "fewer": min(9, values[-1] - 2)}[kind]
        n = rng.randint(2, highest)
        words = f"{n} times as many {item} as" if kind == "times" else f"{n} {kind} {item} than"
        question += f"{who} has {words} {before}. "
        operator = {"more": "+", "times": "*", "fewer": "-"}[kind]
        value, text = marked(values[-1], operator, n)
        answer += f"Step {step + 2}: {who} has {text} {item}.\n"
        values.append(value)
    question += f"How many {item} do {people[-2]} and {people[-1]} have together?"
    total, text = marked(values[-2], "+", values[-1])
    answer += (
        f"Step {len(people) + 1}: Together, {people[-2]} and {people[-1]} have {text} {item}.\n"
    )
    return _finish(rng, question, answer, _final(total, item))


def days(rng: Random) -> QuestionAnswer:
    """One number a day, added up."""
    (who,) = names(rng, 1)
    values = [rng.randint(2, 9) for _ in range(rng.randint(4, 7))]
    verb, item = rng.choice(
        (
            ("reads", "books"),
            ("bakes", "cookies"),
            ("picks", "apples"),
            ("sells", "tickets"),
            ("finds", "shells"),
            ("collects", "stamps"),
        )
    )
    pairs = list(zip(DAYS, values, strict=False))
    question = f"{who} {verb} these numbers of {item}: " + ", ".join(f"{d} {v}" for d, v in pairs)
    question += f". How many {item} is that in total?"
    total = values[0]
    answer = rng.choice(_OPENINGS) + f"On Monday, {who} {verb} {total} {item}.\n"
    for day, value in pairs[1:]:
        total, text = marked(total, "+", value)
        answer += f"On {day}, {who} {verb} {value} {item}, so the total is {text} {item}.\n"
    return _finish(rng, question, answer, _final(total, item))


def share(rng: Random) -> QuestionAnswer:
    """Packs are filled, shared out evenly, and some things are left or given away."""
    who, other = names(rng, 2)
    item, pack = rng.choice(ITEMS), rng.choice(list(PACKS))
    people, each = rng.randint(2, 6), rng.randint(3, 9)
    total = people * each
    given = rng.randint(1, each - 1)
    question = (
        f"{who} shares {total} {item} equally among {NUMBER_WORDS[people]} {pack}. "
        f"Then {who} takes {given} {item} out of one {PACKS[pack]} for {other}. "
        f"How many {item} are left in that {PACKS[pack]}?"
    )
    value, first = marked(total, "/", people)
    left, second = marked(value, "-", given)
    answer = rng.choice(_OPENINGS) + f"Step 1: Each {PACKS[pack]} gets {first} {item}.\n"
    answer += f"Step 2: After {other} gets {given} {item}, the {PACKS[pack]} has {second} {item}.\n"
    return _finish(rng, question, answer, _final(left, item))


FORMS: dict[str, Callable[[Random], QuestionAnswer]] = {
    "story": story,
    "shop": shop,
    "saving": saving,
    "table": table,
    "compare": compare,
    "days": days,
    "share": share,
}
