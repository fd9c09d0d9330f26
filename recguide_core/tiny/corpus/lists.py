"""Lists and records rewritten in another form: the answer copies every item of the question."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from recguide_core.tiny.corpus.words import CATEGORIES, NUMBER_WORDS, capital, category_items, names

QuestionAnswer = tuple[str, str]
Record = dict[str, str | int]

_NOTE = (
    "\nPlease note that the answer holds exactly the items of the question. No item was added, no "
    "item was left out, and the spelling of every item was kept as it was given. If you want the "
    "list in another form, for example as a table, as a numbered list or in reverse order, just "
    "ask again, and name the form that you want. You can also send a longer list, or more than one "
    "list at the same time, and every list will be written in the same way."
)


def _finish(rng: Random, question: str, answer: str) -> QuestionAnswer:
    """Half of the time, ask for the fixed note and add it."""
    if rng.random() < 0.5:
        return f"{question} Add a note.", answer + _NOTE
    return question, answer


def plain(rng: Random) -> QuestionAnswer:
    """A sentence becomes a numbered, bulleted or dashed list."""
    category, items = category_items(rng, 4, 6)
    style = rng.choice(("numbered list", "bullet list", "list with dashes"))
    verb = rng.choice(("Write the following", "Turn these", "Show these"))
    link = "into" if verb == "Turn these" else "as"
    question = f"{verb} {category} {link} a {style}: {', '.join(items)}."
    lines = []
    for index, item in enumerate(items):
        lines.append({"n": f"{index + 1}. {item}", "b": f"* {item}", "l": f"- {item}"}[style[0]])
    answer = f"Here are the {category} as a {style}:\n" + "\n".join(lines)
    answer += f"\nThe list has {NUMBER_WORDS[len(items)]} {category}."
    return _finish(rng, question, answer)


def reverse(rng: Random) -> QuestionAnswer:
    """The given order, then the reverse."""
    category, items = category_items(rng, 4, 5)
    question = rng.choice(
        (
            f"Reverse the order of these {category}: {', '.join(items)}.",
            f"Write these {category} from last to first: {', '.join(items)}.",
        )
    )
    given = "\n".join(f"{i + 1}. {item}" for i, item in enumerate(items))
    turned = "\n".join(f"{i + 1}. {item}" for i, item in enumerate(items[::-1]))
    answer = f"Here are the {category} in the given order:\n{given}"
    answer += f"\nHere are the {category} in reverse order:\n{turned}"
    return _finish(rng, question, answer)


def count(rng: Random) -> QuestionAnswer:
    """Items numbered in words."""
    category, items = category_items(rng, 4, 7)
    question = rng.choice(
        (
            f"How many {category} are in this list? {', '.join(items)}",
            f"Count the {category}: {', '.join(items)}.",
        )
    )
    lines = [f"{capital(x)} is number {NUMBER_WORDS[i + 1]}." for i, x in enumerate(items)]
    answer = f"Let us count the {category} one by one.\n" + "\n".join(lines)
    answer += f"\nThere are {NUMBER_WORDS[len(items)]} {category} in the list."
    return _finish(rng, question, answer)


def markup(rng: Random) -> QuestionAnswer:
    """Items wrapped in tags or strings: much syntax, little choice."""
    category, items = category_items(rng, 4, 6)
    single = category[:-3] + "y" if category.endswith("ies") else category[:-1]
    style = rng.choice(("XML", "HTML", "CSV"))
    verb = rng.choice(("Convert", "Turn"))
    link = "to" if verb == "Convert" else "into"
    question = f"{verb} these {category} {link} {style}: {', '.join(items)}."
    if style == "XML":
        body = "\n".join(f"  <{single}>\n    <name>{x}</name>\n  </{single}>" for x in items)
        body = f"<{category}>\n{body}\n</{category}>"
    elif style == "HTML":
        body = "<ul>\n" + "\n".join(f'  <li class="{single}">{x}</li>' for x in items) + "\n</ul>"
    else:
        body = "number,name,group\n" + "\n".join(
            f"{i + 1},{x},{category}" for i, x in enumerate(items)
        )
    return _finish(rng, question, f"Here are the {category} as {style}:\n{body}")


def _records(rng: Random) -> tuple[list[str], list[Record]]:
    people = names(rng, rng.randint(2, 4))
    makers: dict[str, Callable[[], str | int]] = {
        "age": lambda: rng.randint(8, 70),
        "city": lambda: rng.choice(CATEGORIES["cities"]),
        "color": lambda: rng.choice(CATEGORIES["colors"]),
        "pet": lambda: rng.choice(CATEGORIES["animals"]),
        "job": lambda: rng.choice(CATEGORIES["jobs"]),
    }
    fields = rng.sample(list(makers), 2)
    return fields, [{"name": n, **{f: makers[f]() for f in fields}} for n in people]


def _spoken(records: list[Record], fields: list[str]) -> str:
    parts = [", ".join([str(r["name"]), *(f"{f} {r[f]}" for f in fields)]) for r in records]
    return "; ".join(parts)


def as_json(rng: Random) -> QuestionAnswer:
    """Records as JSON."""
    fields, records = _records(rng)
    question = rng.choice(("Convert these records to JSON: ", "Write these records as JSON: "))
    rows = []
    for record in records:
        pairs = ",\n".join(f'    "{key}": {json.dumps(value)}' for key, value in record.items())
        rows.append("  {\n" + pairs + "\n  }")
    answer = "```json\n[\n" + ",\n".join(rows) + "\n]\n```"
    return _finish(rng, question + _spoken(records, fields) + ".", answer)


def as_table(rng: Random) -> QuestionAnswer:
    """Records as a Markdown table."""
    fields, records = _records(rng)
    header = ["name", *fields]
    question = rng.choice(("Make a table from these records: ", "Show these records as a table: "))
    rows = ["| " + " | ".join(str(r[key]) for key in header) + " |" for r in records]
    answer = "Here is the table:\n| " + " | ".join(header) + " |\n|" + " --- |" * len(header) + "\n"
    answer += "\n".join(rows)
    answer += f"\nThe table has {NUMBER_WORDS[len(records)]} rows and three columns."
    return _finish(rng, question + _spoken(records, fields) + ".", answer)


def as_sentences(rng: Random) -> QuestionAnswer:
    """Records as full sentences."""
    fields, records = _records(rng)
    verbs = {
        "age": "is {} years old",
        "city": "lives in {}",
        "color": "likes the color {}",
        "pet": "has a {} as a pet",
        "job": "works as a {}",
    }
    question = rng.choice(("Describe these people: ", "Write one sentence for each fact: "))
    lines = [f"{r['name']} {verbs[f].format(r[f])}." for r in records for f in fields]
    return _finish(rng, question + _spoken(records, fields) + ".", "\n".join(lines))


FORMS: dict[str, Callable[[Random], QuestionAnswer]] = {
    "plain": plain,
    "reverse": reverse,
    "count": count,
    "markup": markup,
    "as_json": as_json,
    "as_table": as_table,
    "as_sentences": as_sentences,
}
