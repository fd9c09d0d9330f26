"""From one row of a user's file to a conversation, or to the reason why it is none.

A bad row is never turned into an empty prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recguide_core.datasets.records import Message
from recguide_core.errors import nearest

TEXT_COLUMNS = ("prompt", "question", "problem", "instruction", "text", "input")
"""Columns taken for the task when none is named, in this order."""
CONVERSATION_COLUMNS = ("messages", "conversations", "turns")
TURNS = ("first", "all", "last", "chat")
"""Which questions of a conversation are asked; `chat`: every one, after the model's own answers."""

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "tool": "tool",
}


class BadRowError(Exception):
    """Why a row is no prompt; becomes `file:line: cause`."""


def choose_column(row: Mapping[str, Any], asked: str | None) -> str:
    """The column that holds the task: the one asked for, else the first usual name present."""
    if asked is not None:
        if asked not in row:
            raise BadRowError(f"no column '{asked}'; {nearest(asked, [str(key) for key in row])}")
        return asked
    for name in (*CONVERSATION_COLUMNS, *TEXT_COLUMNS):
        if name in row and row[name] is not None:
            return name
    present = ", ".join(str(key) for key in list(row)[:12]) or "none"
    raise BadRowError(f"no column with a prompt (columns present: {present})")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the model is to answer, and the questions that follow its own answers."""

    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()


def conversations(row: Any, column: str | None, turns: str) -> list[Asked]:
    """The conversations that the model is to answer.

    Args:
        row: a mapping of columns, or a bare list of messages.
        column: column with the prompt, or None to guess it.
        turns: ask the `first` question alone, the `last` with all before it, or `all` of them,
            each with what the file says before it; `chat` asks them in one conversation, in
            which the model's answers take the place of the file's.

    Raises:
        BadRowError: with the reason.
    """
    if isinstance(row, list):
        return _asked(_messages(row), turns)
    if not isinstance(row, Mapping):
        raise BadRowError(f"a row must be an object, not {_type(row)}")
    name = choose_column(row, column)
    value = row[name]
    if name in CONVERSATION_COLUMNS or isinstance(value, list):
        return _asked(_messages(_decoded(value, name)), turns)
    return [Asked((("user", _text(value, name)),))]


def _decoded(value: Any, name: str) -> list[Any]:
    """A list, also when the file holds it as a JSON string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRowError(f"'{name}' is text, not a list of turns") from None
    if not isinstance(value, Sequence):
        raise BadRowError(f"'{name}' must be a list, not {_type(value)}")
    return list(value)


def _messages(items: list[Any]) -> list[Message]:
    if not items:
        raise BadRowError("the conversation is empty")
    return [_message(item, number) for number, item in enumerate(items)]


def _message(item: Any, number: int) -> Message:
    if isinstance(item, str):
        # A bare list of turns holds the user's questions.
        return "user", _text(item, f"turn {number}")
    if not isinstance(item, Mapping):
        raise BadRowError(f"turn {number} must be an object or text, not {_type(item)}")
    said = item.get("role", item.get("from"))
    role = _ROLES.get(said.lower()) if isinstance(said, str) else None
    if role is None:
        raise BadRowError(f"turn {number} has the unknown role {said!r}")
    content = item.get("content", item.get("value"))
    return role, _text(_joined(content, number), f"turn {number}")


def _joined(content: Any, number: int) -> Any:
    """Content given as a list of parts, as the OpenAI API allows: its text parts joined."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "text":
            parts.append(_text(part.get("text"), f"turn {number}"))
        else:
            kind = part.get("type") if isinstance(part, Mapping) else _type(part)
            raise BadRowError(
                f"turn {number} has a content part of type {kind!r}; only text is read"
            )
    return "\n".join(parts)


def _asked(messages: list[Message], turns: str) -> list[Asked]:
    questions = [i for i, (role, _) in enumerate(messages) if role == "user"]
    if not questions:
        raise BadRowError("the conversation has no turn by the user")
    if turns == "first":
        system = [m for m in messages[: questions[0]] if m[0] == "system"]
        return [Asked((*system, messages[questions[0]]))]
    if turns == "chat":
        return [_chat(messages, questions[0])]
    wanted = questions if turns == "all" else questions[-1:]
    return [Asked(tuple(messages[: i + 1])) for i in wanted]


def _chat(messages: list[Message], first: int) -> Asked:
    """The first question with all before it; of what follows, the user's questions alone."""
    rest = messages[first + 1 :]
    strange = next((role for role, _ in rest if role not in ("user", "assistant")), None)
    if strange is not None:
        raise BadRowError(f"a {strange} message behind the first question cannot be replayed")
    later = tuple(text for role, text in rest if role == "user")
    return Asked(tuple(messages[: first + 1]), later)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRowError(f"'{name}' must be text, not {_type(value)}")
    if not value.strip():
        raise BadRowError(f"'{name}' is empty")
    return value


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    if value is None:
        return "null"
    return names.get(type(value), "a number" if isinstance(value, int | float) else "that")
