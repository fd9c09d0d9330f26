"""Recordings: what the model answers at every position of a text, for every block size.

Verification is lossless, so whatever a policy does, a request passes through states of one text:
its AR text. A recording holds draft, check and continuation of every block at every position of
that text; with it the real engine replays any policy at any load without the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.errors import DataError
from recguide_core.records import MAX_BLOCK, FloatArray, IntArray
from recguide_core.tables import write_whole

SCHEMA = "recguide.recording/1"


@dataclass(slots=True)
class Recording:
    """One text, T positions, J drafting blocks; grids are padded to MAX_BLOCK.

    Attributes:
        name: hash of the prompt; prompt: its token ids, int64 [n].
        blocks: sizes, ascending, int64 [J].
        text: emitted tokens; `text[t]` is the seed of position t, int64 [T + 1].
        draft, alt: draft tokens (slot 0 = seed) and alternatives, int64 [T, J, MAX_BLOCK].
        margin, confidence: of the draft, float32 [T, J, MAX_BLOCK].
        check: verifier's answers to that draft, int64 [T, J, MAX_BLOCK].
        entropy: of these answers in nats, float32 [T, J, MAX_BLOCK].
        free, free_alt, free_margin, free_confidence: the same of a block whose slot 0 is a MASK
            too, as behind a hypothesis (continuation): `free[..., 0]` is the seed it predicts.
        free_check, free_entropy: of that draft with the true seed in slot 0.
    """

    name: str
    prompt: IntArray
    blocks: IntArray
    text: IntArray
    draft: IntArray
    alt: IntArray
    margin: FloatArray
    confidence: FloatArray
    check: IntArray
    entropy: FloatArray
    free: IntArray
    free_alt: IntArray
    free_margin: FloatArray
    free_confidence: FloatArray
    free_check: IntArray
    free_entropy: FloatArray

    @property
    def positions(self) -> int:
        return len(self.draft)


DRAFTED = ("draft", "alt", "margin", "confidence")
FREE = ("free", "free_alt", "free_margin", "free_confidence")
CHECKS = (("draft", "check", "entropy"), ("free", "free_check", "free_entropy"))
"""A draft with its check and entropies: the seeded one, and the one with a MASK in slot 0."""
GRIDS = (*DRAFTED, *FREE, "check", "entropy", "free_check", "free_entropy")
_COLUMNS = ("prompt", "blocks", "text", *GRIDS)
_FLOATS = ("margin", "confidence", "entropy", "free_margin", "free_confidence", "free_entropy")


def blank_grids(blocks: int) -> dict[str, np.ndarray]:
    """Grids of one position without readings, [blocks, MAX_BLOCK]; margins are 1."""
    shape = (blocks, MAX_BLOCK)
    return {
        name: np.full(shape, "margin" in name, np.float32 if name in _FLOATS else np.int64)
        for name in GRIDS
    }


@dataclass(slots=True)
class Builder:
    """Collects the positions of a recording while its text is decoded."""

    name: str
    prompt: IntArray
    blocks: tuple[int, ...]
    text: list[int]
    rows: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, grids: dict[str, np.ndarray], answer: int) -> None:
        """One position: its grids [J, MAX_BLOCK] and AR's next token."""
        for name, grid in grids.items():
            self.rows.setdefault(name, []).append(grid)
        self.text.append(answer)

    def done(self) -> Recording:
        """The finished recording."""
        if not self.rows:
            blank = blank_grids(len(self.blocks))
            grids: dict[str, Any] = {name: grid[None][:0] for name, grid in blank.items()}
        else:
            grids = {name: np.stack(rows) for name, rows in self.rows.items()}
        return Recording(
            name=self.name,
            prompt=self.prompt,
            blocks=np.asarray(self.blocks, np.int64),
            text=np.asarray(self.text, np.int64),
            **grids,
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recordings and what ended their texts.

    Attributes:
        max_tokens: output limit; eos_ids: tokens that end a text.
    """

    texts: list[Recording]
    max_tokens: int
    eos_ids: frozenset[int]

    def budget(self, text: Recording) -> int:
        """Output limit under which a request ends where its recording does."""
        return self.max_tokens if int(text.text[-1]) in self.eos_ids else len(text.text)

    def take(self, names: Iterable[str]) -> Recorded:
        """The recordings of these prompts, in their order."""
        known = {t.name: t for t in self.texts}
        return Recorded([known[n] for n in names if n in known], self.max_tokens, self.eos_ids)


def save_recordings(path: Path, about: dict[str, Any], recordings: Sequence[Recording]) -> None:
    """Write recordings whole; `about` says what they were made with."""
    arrays: dict[str, Any] = {
        "about": np.array(json.dumps({"schema": SCHEMA, **about}, sort_keys=True)),
        "names": np.array([r.name for r in recordings]),
    }
    for i, one in enumerate(recordings):
        for column in _COLUMNS:
            array = getattr(one, column)
            small = array.astype(np.int32) if array.dtype == np.int64 else array
            arrays[f"{i}/{column}"] = small
    write_whole(path, lambda stream: np.savez_compressed(stream, **arrays))


def load_recordings(path: Path, about: dict[str, Any]) -> list[Recording]:
    """Recordings of a file if it was made with exactly `about`, else none.

    Raises:
        DataError: the file is none of ours.
    """
    if not path.is_file():
        return []
    try:
        with np.load(path, allow_pickle=False) as data:
            if json.loads(str(data["about"])) != {"schema": SCHEMA, **about}:
                return []
            return [
                Recording(str(name), **{c: _wide(data[f"{i}/{c}"]) for c in _COLUMNS})
                for i, name in enumerate(data["names"])
            ]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is no recording ({error}).", "Delete the file.") from error


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int64) if array.dtype == np.int32 else array


def by_prompt(recordings: Iterable[Recording]) -> dict[bytes, Recording]:
    """Recordings by the bytes of their prompt's ids."""
    return {np.ascontiguousarray(r.prompt, np.int64).tobytes(): r for r in recordings}
