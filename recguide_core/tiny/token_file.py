"""A token file: many documents as one flat array, for training without the texts.

Layout (`.npz`): `tokens` uint16, `offsets` int64 [n + 1], `prompt` int32 [n] (tokens before the
answer, template included), `use` uint8 [n] (which losses a document feeds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recguide_core.errors import DataError


class Use(IntEnum):
    """Which losses a document feeds."""

    BOTH = 0
    DRAFT_ONLY = 1
    AR_ONLY = 2
    AVOID = 3
    """An answer that goes in circles: what repeats in it is made less likely."""


@dataclass(frozen=True)
class Example:
    """One document in tokens: template, prompt and answer; the answer starts at `prompt`."""

    tokens: NDArray[np.int64]
    prompt: int
    use: Use = Use.BOTH


def write_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write examples to `path`, whole (a temporary file, then a rename)."""
    lengths = [len(e.tokens) for e in examples]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        tokens=np.concatenate([e.tokens for e in examples]).astype(np.uint16),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        prompt=np.array([e.prompt for e in examples], np.int32),
        use=np.array([int(e.use) for e in examples], np.uint8),
    )
    part.replace(path)


def read_examples(path: Path, longest: int) -> list[Example]:
    """Read examples, cut to `longest` tokens; those whose answer is cut to nothing are left out.

    Raises:
        DataError: the file is missing or no token file.
    """
    try:
        with np.load(path) as file:
            tokens = file["tokens"].astype(np.int64)
            offsets, prompt, use = file["offsets"], file["prompt"], file["use"]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} is no token file: {error}.",
            "Make one with `python -m recguide_core.tiny.prepare`.",
        ) from error
    examples = []
    for i, start in enumerate(offsets[:-1]):
        text = tokens[start : offsets[i + 1]][:longest]
        if prompt[i] < len(text) - 3:
            examples.append(Example(text, int(prompt[i]), Use(int(use[i]))))
    return examples
