"""What a data set gives: prompts, and rows that could not become one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

Message = tuple[str, str]
"""Role and content."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task.

    Attributes:
        id: unique in its data set.
        messages: the conversation up to where the model answers, at least one.
        dataset, category: where it belongs in tables (`math`, `code`, `qa_if`, ... or "").
        max_tokens: output length that the data asks for, or None.
        later: the user's next questions, asked one by one after the model's own answers.
    """

    id: str
    messages: tuple[Message, ...]
    dataset: str
    category: str = ""
    max_tokens: int | None = None
    later: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The last message, which the model answers."""
        return self.messages[-1][1]

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the conversation; names it across data sets."""
        digest = hashlib.sha256()
        for role, content in self.messages:
            digest.update(f"{role}\0{content}\0".encode())
        for question in self.later:
            digest.update(f"later\0{question}\0".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that was left out on request, with its place and reason."""

    file: str
    line: int
    cause: str
