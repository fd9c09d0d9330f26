"""Is the text right? Counters for calculator marks, list lines and code whose results hold."""

from __future__ import annotations
import __future__

import ast
import builtins
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

_MARK = re.compile(r"<<([0-9+\-*/.() ]+)=([0-9.]+)>>")
_FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_EXAMPLE = re.compile(r"^>>> (.+)\n((?:(?!>>> |Steps for )[^\n]+\n?)+)", re.MULTILINE)
_LINE_BUDGET = 20_000


@dataclass(frozen=True)
class Score:
    """How many of `total` things are right."""

    right: int
    total: int

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.total + other.total)

    @property
    def share(self) -> float:
        """Right ones over all, 0 where there are none."""
        return self.right / self.total if self.total else 0.0


def marks(answer: str) -> Score:
    """Count calculator marks `<<a+b=c>>` whose result is right (to 0.01)."""
    right = total = 0
    for expression, stated in _MARK.findall(answer):
        total += 1
        value = _evaluate(expression)
        right += value is not None and _near(value, stated)
    return Score(right, total)


def _near(value: float, stated: str) -> bool:
    try:
        return abs(value - float(stated)) < 0.01
    except ValueError:
        return False


def _evaluate(expression: str) -> float | None:
    """Return the value of an expression of numbers and + - * /, None if it is none."""
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError):
        return None


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("no arithmetic")


def lines(answer: str, reference: str) -> Score:
    """Count the reference's lines that stand at the same place in the answer."""
    wanted, given = reference.split("\n"), answer.split("\n")
    right = sum(a == b for a, b in zip(wanted, given, strict=False))
    return Score(right, max(len(wanted), len(given)))


def code(answer: str) -> Score:
    """Return 1 of 1 if the fenced code parses and runs and every stated result holds, else 0 of 1.

    A stated result is a line `>>> call` with the value's repr, or its printed output, below it.
    Assertions inside functions named `test_*` are run as well.
    """
    block = _FENCE.search(answer)
    if block is None:
        return Score(0, 1)
    try:
        return Score(int(_holds(block[1], answer[block.end() :])), 1)
    except Exception:  # whatever the text does when run, it is a wrong text
        return Score(0, 1)


def _holds(source: str, shown: str) -> bool:
    """Run the source and compare every shown result."""
    printed: list[str] = []
    space = _namespace(printed)
    _run(compile(ast.parse(source), "<answer>", "exec"), space)
    for name in [n for n in space if n.startswith("test_")]:
        _run(compile(f"{name}()", "<test>", "exec"), space)
    for call, stated in _EXAMPLE.findall(shown + "\n"):
        printed.clear()
        value = _run(compile(call, "<example>", "eval"), space)
        result = "\n".join(printed) if value is None else repr(value)
        if result.strip() != stated.strip():
            return False
    return True


_ALLOWED = (
    "abs all any bool dict enumerate float int len list max min range reversed round set sorted "
    "str sum tuple zip object __build_class__ AssertionError ValueError KeyError IndexError"
)


def _import(name: str, *_: object) -> object:
    """Stand in for `import`: nothing but `from __future__ import ...`."""
    if name != "__future__":
        raise ImportError(name)
    return __future__


def _namespace(printed: list[str]) -> dict[str, Any]:
    """Return globals with a few harmless builtins; `print` collects its lines."""

    def collect(*items: object) -> None:
        printed.append(" ".join(str(item) for item in items))

    allowed: dict[str, object] = {name: getattr(builtins, name) for name in _ALLOWED.split()}
    allowed |= {"print": collect, "__import__": _import}
    return {"__builtins__": allowed, "__name__": "answer"}


def _run(program: CodeType, space: dict[str, Any]) -> Any:
    """Evaluate a program under a budget of traced lines, so that an endless loop ends."""
    left = _LINE_BUDGET

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise TimeoutError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return eval(program, space)
    finally:
        sys.settrace(before)
