"""Small Python functions with a docstring, an unrolled trace and examples whose results hold.

The example inputs stand in the question, so they are copied; the trace reaches the result one small
step at a time, so the stated result is a copy of its last line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from recguide_core.tiny.corpus.words import CATEGORIES, CLASSES, FIELDS, NUMBER_WORDS

QuestionAnswer = tuple[str, str]

_HEADER = (
    '"""A small module for other programs.\n\n'
    "It has no side effects, it does not change its arguments, and it needs nothing but the "
    "standard\n"
    "library. Import it from another file, or run it from the command line to test it. The "
    "examples\n"
    'in the text are part of the tests, so please keep them up to date.\n"""\n\n'
    "from __future__ import annotations\n\n\n"
)
_TAIL = (
    '\n\nif __name__ == "__main__":\n    import doctest\n\n    failures, tests = '
    "doctest.testmod()\n"
    '    print("tests:", tests)\n    print("failures:", failures)\n'
)


@dataclass(frozen=True)
class Loop:
    """A loop over a list of numbers.

    `name` and `what` may hold `{n}`, a small number drawn per document; `step(state, value, n)`
    returns the new state; `why`, filled with state, value and n, is the small fact that decides it.
    """

    name: str
    what: str
    start: str
    body: str
    result: str
    step: Callable[[object, int, int], object]
    initial: Callable[[list[int]], object]
    why: Callable[[object, int, int], str]


def _append(state: object, *values: int) -> list[int]:
    assert isinstance(state, list)
    return [*state, *values]


def _compared(left: int, sign: str, right: int, holds: bool) -> str:
    return f"{left} {sign} {right} {'yes' if holds else 'no'}"


def _number(state: object) -> int:
    assert isinstance(state, int)
    return state


LOOPS = (
    Loop("sum_of", "the sum of the {v}", "total = 0", "total += {x}", "total",
         lambda s, x, n: _number(s) + x, lambda v: 0,
         lambda s, x, n: f"{s} + {x} = {_number(s) + x}"),
    Loop("largest", "the largest of the {v}", "best = {v}[0]",
         "if {x} > best:\n            best = {x}",
         "best", lambda s, x, n: max(_number(s), x), lambda v: v[0],
         lambda s, x, n: _compared(x, ">", _number(s), x > _number(s))),
    Loop("smallest", "the smallest of the {v}", "best = {v}[0]",
         "if {x} < best:\n            best = {x}", "best",
         lambda s, x, n: min(_number(s), x), lambda v: v[0],
         lambda s, x, n: _compared(x, "<", _number(s), x < _number(s))),
    Loop("count_above_{n}", "how many of the {v} are above {n}", "count = 0",
         "if {x} > {n}:\n            count += 1", "count",
         lambda s, x, n: _number(s) + (x > n), lambda v: 0,
         lambda s, x, n: _compared(x, ">", n, x > n)),
    Loop("count_below_{n}", "how many of the {v} are below {n}", "count = 0",
         "if {x} < {n}:\n            count += 1", "count",
         lambda s, x, n: _number(s) + (x < n), lambda v: 0,
         lambda s, x, n: _compared(x, "<", n, x < n)),
    Loop("count_even", "how many of the {v} are even", "count = 0",
         "if {x} % 2 == 0:\n            count += 1", "count",
         lambda s, x, n: _number(s) + (x % 2 == 0), lambda v: 0,
         lambda s, x, n: f"{x} is {'odd' if x % 2 else 'even'}"),
    Loop("even_only", "the even ones of the {v}", "result = []",
         "if {x} % 2 == 0:\n            result.append({x})", "result",
         lambda s, x, n: _append(s, x) if x % 2 == 0 else s, lambda v: [],
         lambda s, x, n: f"{x} is {'odd' if x % 2 else 'even'}"),
    Loop("above_{n}", "the {v} above {n}", "result = []",
         "if {x} > {n}:\n            result.append({x})", "result",
         lambda s, x, n: _append(s, x) if x > n else s, lambda v: [],
         lambda s, x, n: _compared(x, ">", n, x > n)),
    Loop("add_{n}", "the {v} with {n} added to each", "result = []", "result.append({x} + {n})",
         "result", lambda s, x, n: _append(s, x + n), lambda v: [],
         lambda s, x, n: f"{x} + {n} = {x + n}"),
    Loop("double", "the {v} doubled", "result = []", "result.append({x} * 2)", "result",
         lambda s, x, n: _append(s, x * 2), lambda v: [],
         lambda s, x, n: f"{x} * 2 = {x * 2}"),
    Loop("copy_of", "a copy of the {v}", "result = []", "result.append({x})", "result",
         lambda s, x, n: _append(s, x), lambda v: [],
         lambda s, x, n: f"{x} = {x}"),
)  # fmt: skip


def _finish(rng: Random, question: str, code: str, shown: str = "") -> QuestionAnswer:
    """Half of the time, ask for the long form of a module and wrap the code in it."""
    if rng.random() < 0.5:
        question, code = f"{question} Make it a module.", _HEADER + code + _TAIL
    return question, f"```python\n{code}```\n{shown}".rstrip("\n")


def loop(rng: Random) -> QuestionAnswer:
    """A function with one loop, a trace and one or two examples."""
    form, n = rng.choice(LOOPS), rng.randint(2, 8)
    plural = rng.choice(("values", "numbers", "scores", "prices", "sizes"))
    fill = {"v": plural, "x": plural[:-1], "n": str(n)}
    name, what = form.name.format(**fill), form.what.format(**fill)
    inputs = [[rng.randint(1, 9) for _ in range(rng.randint(3, 4))] for _ in range(2)][
        : rng.randint(1, 2)
    ]
    question = rng.choice(
        (
            f"Write a Python function {name}({plural}) that returns {what}.",
            f"Define {name}({plural}) in Python. It returns {what}.",
        )
    )
    question += f" Show the steps for {' and '.join(str(values) for values in inputs)}."
    code = (
        f'def {name}({plural}):\n    """Return {what}.\n\n    Args:\n'
        f'        {plural}: a list of numbers.\n    """\n'
        f"    {form.start.format(**fill)}\n    for {plural[:-1]} in {plural}:\n"
        f"        {form.body.format(**fill)}\n    return {form.result}\n"
    )
    shown = "".join(_trace(form, name, plural[:-1], values, n) for values in inputs)
    return _finish(rng, question, code, shown)


def _trace(form: Loop, name: str, single: str, values: list[int], n: int) -> str:
    """Return the unrolled loop over `values`, ending with a call and its result."""
    state = form.initial(values)
    lines = [f"Steps for {values}:", f"{form.result} = {state}"]
    for value in values:
        why = form.why(state, value, n)
        state = form.step(state, value, n)
        lines.append(f"{single} = {value}: {why}, {form.result} = {state}")
    return "\n".join([*lines, f">>> {name}({values})", f"{state}", ""])


def lookup(rng: Random) -> QuestionAnswer:
    """A chain of comparisons that returns a number per word."""
    category = rng.choice(list(CATEGORIES))
    words = rng.sample(CATEGORIES[category], rng.randint(3, 4))
    values = [rng.randint(1, 30) for _ in words]
    unit = rng.choice(("price", "count", "code", "weight"))
    pairs = list(zip(words, values, strict=True))
    question = (
        f"Write a Python function {unit}_of(name) that returns the {unit} for these {category}: "
    )
    question += ", ".join(f"{word} {value}" for word, value in pairs)
    question += ". Return 0 for anything else."
    code = f'def {unit}_of(name):\n    """Return the {unit} for the given name."""\n'
    for word, value in pairs:
        code += f'    if name == "{word}":\n        return {value}\n'
    code += "    return 0\n"
    shown = "".join(f'>>> {unit}_of("{word}")\n{value}\n' for word, value in pairs[:2])
    return _finish(rng, question, code, shown)


def printed(rng: Random) -> QuestionAnswer:
    """A loop and its whole output: an unrolled loop."""
    last, n = rng.randint(6, 9), rng.randint(2, 9)
    sign = rng.choice("+*")
    question = f"Write a Python function that prints i {sign} {n} for i from 1 to {last}"
    question += ", and show the output."
    code = (
        f'def show():\n    """Print i {sign} {n} for every i from 1 to {last}."""\n'
        f"    for i in range(1, {last + 1}):\n"
        f'        print(i, "{sign}", {n}, "=", i {sign} {n})\n'
    )
    rows = [f"{i} {sign} {n} = {i + n if sign == '+' else i * n}" for i in range(1, last + 1)]
    return _finish(rng, question, code, ">>> show()\n" + "\n".join(rows))


PAIR_FUNCTIONS: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (
    ("add", "a + b", lambda a, b: a + b),
    ("subtract", "a - b", lambda a, b: a - b),
    ("multiply", "a * b", lambda a, b: a * b),
    ("larger", "max(a, b)", max),
    ("smaller", "min(a, b)", min),
)


def tests(rng: Random) -> QuestionAnswer:
    """A function of two numbers with test cases."""
    name, expression, function = rng.choice(PAIR_FUNCTIONS)
    pairs = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(rng.randint(3, 5))]
    pairs = [(max(p), min(p)) for p in pairs] if name == "subtract" else pairs
    question = f"Write a Python function {name}(a, b) with {NUMBER_WORDS[len(pairs)]} tests "
    question += "for these pairs: " + ", ".join(f"{a} and {b}" for a, b in pairs) + "."
    code = f'def {name}(a, b):\n    """Return {expression}."""\n    return {expression}\n\n\n'
    code += f'def test_{name}():\n    """Check the function {name}."""\n'
    for a, b in pairs:
        code += f"    assert {name}({a}, {b}) == {function(a, b)}\n"
    shown = "".join(f">>> {name}({a}, {b})\n{function(a, b)}\n" for a, b in pairs[:2])
    return _finish(rng, question, code, shown)


def record(rng: Random) -> QuestionAnswer:
    """A class whose fields are repeated in three methods."""
    title, fields = rng.choice(CLASSES), rng.sample(FIELDS, rng.randint(2, 4))
    lower = title.lower()
    question = rng.choice(
        (
            f"Write a Python class {title} with the fields {', '.join(fields)}.",
            f"Define a class {title} in Python. The fields are {', '.join(fields)}.",
        )
    )
    question += " Include to_dict and describe."
    code = (
        f'class {title}:\n    """A simple {lower} with {NUMBER_WORDS[len(fields)]} fields."""\n\n'
    )
    code += f"    def __init__(self, {', '.join(fields)}):\n"
    code += "".join(f"        self.{f} = {f}\n" for f in fields)
    code += "\n    def to_dict(self):\n"
    code += f'        """Return the fields of the {lower} as a dictionary."""\n'
    code += (
        "        return {\n"
        + "".join(f'            "{f}": self.{f},\n' for f in fields)
        + "        }\n"
    )
    code += f'\n    def describe(self):\n        """Print every field of the {lower}."""\n'
    code += "".join(f'        print("{f}:", self.{f})\n' for f in fields)
    return _finish(rng, question, code)


FORMS: dict[str, Callable[[Random], QuestionAnswer]] = {
    "loop": loop,
    "lookup": lookup,
    "printed": printed,
    "tests": tests,
    "record": record,
}
