"""Between text and tokens: the template of nld-tiny and its tokenizer."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from recguide_core.tiny.network import ASSISTANT, BOS, EOS, USER
from recguide_core.tiny.token_file import Example, Use

WEIGHTS = Path(__file__).with_name("weights")


@cache
def tokenizer(folder: Path = WEIGHTS) -> Tokenizer:
    """Return the tokenizer of an exported folder (read once)."""
    loaded: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return loaded


def encode_prompt(prompt: str) -> list[int]:
    """Return the ids of `<bos><|user|>` prompt `<|assistant|>`."""
    ids: list[int] = tokenizer().encode(prompt, add_special_tokens=False).ids
    return [BOS, USER, *ids, ASSISTANT]


def encode(prompt: str, answer: str, use: Use = Use.BOTH) -> Example:
    """Return a whole document, ended by EOS."""
    head = encode_prompt(prompt)
    tail: list[int] = tokenizer().encode(answer, add_special_tokens=False).ids
    return Example(np.array([*head, *tail, EOS], np.int64), len(head), use)


def decode(ids: list[int]) -> str:
    """Return the text of answer tokens, without EOS."""
    text: str = tokenizer().decode([i for i in ids if i != EOS])
    return text
