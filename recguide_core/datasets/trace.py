"""Recorded loads: when requests came, how long their prompts were, how much they were given.

The form is Mooncake's, a JSON object a line: `timestamp`, `input_length`, `output_length`, and
`hash_ids`, which name blocks of `HASH_BLOCK` prompt tokens that several requests share. Such a
trace has no text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from recguide_core.datasets.formats import read_rows
from recguide_core.datasets.records import Skipped
from recguide_core.datasets.rows import BadRowError
from recguide_core.errors import DataError, UsageError, nearest

HASH_BLOCK = 512
"""Prompt tokens that one hash id stands for."""
UNITS = ("auto", "ms", "s")
_REMEDY = "Mend the row, or leave such rows out: --skip-bad-rows"
SAMPLE = '{"timestamp": 1500, "input_length": 320, "output_length": 64, "hash_ids": [7]}'


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a trace.

    Attributes:
        line: in its file; arrival_s: seconds since the first request that is replayed.
        input_tokens, output_tokens: length of the prompt; most tokens of the answer.
        blocks: hash ids of the prompt's blocks, in order; may cover less than the prompt.
    """

    line: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class Trace:
    """A load to replay.

    Attributes:
        requests: in order of arrival, the first at 0; unit: of the file's timestamps, ms or s.
        skipped: rows left out, with reasons; skip_bad_rows: whether that is allowed.
        digest: of lengths, arrivals and blocks, 16 hex digits.
    """

    path: Path
    unit: str
    requests: list[Recorded]
    skipped: list[Skipped] = field(default_factory=list)
    skip_bad_rows: bool = False

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.requests).encode()).hexdigest()[:16]

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival_s

    def head(self, count: int | None) -> Trace:
        """The first `count` requests (None: all)."""
        return replace(self, requests=self.requests[:count])

    def within(self, context: int) -> Trace:
        """The requests that a model of this context can serve.

        Raises:
            DataError: one does not fit, unless bad rows may be skipped; or none is left.
        """
        kept, skipped = [], list(self.skipped)
        for request in self.requests:
            if request.input_tokens + request.output_tokens <= context:
                kept.append(request)
                continue
            cause = (
                f"{request.input_tokens} prompt and {request.output_tokens} answer tokens exceed "
                f"the model's context of {context}"
            )
            if not self.skip_bad_rows:
                raise DataError(
                    f"{self.path}:{request.line}: {cause}.",
                    "Choose a model with a longer context, or leave such rows out: --skip-bad-rows",
                )
            skipped.append(Skipped(str(self.path), request.line, cause))
        return replace(self, requests=_from_zero(self.path, kept), skipped=skipped)

    def as_record(self) -> dict[str, Any]:
        """What a run's record says of it."""
        gaps = [b.arrival_s - a.arrival_s for a, b in pairwise(self.requests)]
        return {
            "file": str(self.path),
            "hash": self.digest,
            "unit": self.unit,
            "requests": len(self.requests),
            "seconds": self.seconds,
            "longest_gap_s": max(gaps, default=0.0),
            "input_tokens": sum(r.input_tokens for r in self.requests),
            "output_tokens": sum(r.output_tokens for r in self.requests),
            "shared_blocks": any(r.blocks for r in self.requests),
            "skipped": [f"{s.file}:{s.line}: {s.cause}" for s in self.skipped],
        }


def read_trace(path: Path, unit: str = "auto", *, skip_bad_rows: bool = False) -> Trace:
    """Read a trace.

    Args:
        unit: of the timestamps; `auto` takes seconds when one has a fraction, else milliseconds.

    Raises:
        UsageError: unknown unit, or the file's ending tells no format.
        DataError: no such file, a bad row (`file:line: cause`), or no row at all.
    """
    if unit not in UNITS:
        raise UsageError(f"--time-unit is '{unit}'.", nearest(unit, UNITS))
    skipped: list[Skipped] = []
    rows: list[Recorded] = []
    for line, row in read_rows(path):
        try:
            if isinstance(row, BadRowError):
                raise row
            rows.append(_read(row, line, rows[-1] if rows else None))
        except BadRowError as bad:
            if not skip_bad_rows:
                raise DataError(f"{path}:{line}: {bad}.", _REMEDY) from bad
            skipped.append(Skipped(str(path), line, str(bad)))
    if unit == "auto":
        unit = "s" if any(row.arrival_s % 1 for row in rows) else "ms"
    scale = 1.0 if unit == "s" else 1e-3
    found = [replace(row, arrival_s=scale * row.arrival_s) for row in rows]
    return Trace(path, unit, _from_zero(path, found), skipped, skip_bad_rows)


def _from_zero(path: Path, requests: list[Recorded]) -> list[Recorded]:
    if not requests:
        raise DataError(f"{path} has no request to replay.", f"Expected lines like {SAMPLE}")
    start = requests[0].arrival_s
    return [replace(r, arrival_s=r.arrival_s - start) for r in requests]


def _read(row: Any, line: int, before: Recorded | None) -> Recorded:
    """A row with its timestamp as the file has it."""
    if not isinstance(row, Mapping):
        raise BadRowError("a row must be an object with timestamp, input_length, output_length")
    moment = _number(row, "timestamp")
    if moment < 0:
        raise BadRowError(f"the timestamp is {moment:g}; it must be at least 0")
    if before is not None and moment < before.arrival_s:
        raise BadRowError(
            f"the timestamp {moment:g} lies before the {before.arrival_s:g} of line {before.line}; "
            "a trace must be sorted"
        )
    asked, given = _length(row, "input_length"), _length(row, "output_length")
    return Recorded(line, moment, asked, given, _blocks(row))


def _number(row: Mapping[Any, Any], name: str) -> float:
    value = row.get(name)
    if value is None:
        present = ", ".join(str(key) for key in list(row)[:12]) or "none"
        raise BadRowError(f"no column '{name}' (columns present: {present})")
    if isinstance(value, str):
        # CSV knows text only.
        try:
            value = float(value)
        except ValueError:
            raise BadRowError(f"'{name}' is '{value}', not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRowError(f"'{name}' is {value!r}, not a number")
    return float(value)


def _length(row: Mapping[Any, Any], name: str) -> int:
    value = _number(row, name)
    if value % 1 or value < 1:
        raise BadRowError(f"'{name}' is {value:g}; it must be a whole number of at least 1")
    return int(value)


def _blocks(row: Mapping[Any, Any]) -> tuple[int, ...]:
    value = row.get("hash_ids") or ()
    whole = isinstance(value, list | tuple) and all(type(item) is int for item in value)
    if not whole or any(item < 0 for item in value):
        raise BadRowError("'hash_ids' must be a list of whole numbers of at least 0")
    return tuple(value)
