"""What a bitwise run keeps of each token, to be compared bit for bit with AR's.

A digest covers the token, its log-probability and the `ALTERNATIVES` best with theirs, float32 as
they are. A log-probability holds the sum over all logits, so two digests that are equal say that
the whole decision was the same, its margin included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recguide_core.records import Finished

ALTERNATIVES = 8
_BYTES = 6


def digests(finished: Finished) -> list[int]:
    """A 48-bit digest per token; empty when no log-probabilities were asked for."""
    if finished.logprobs is None or finished.top_logprobs is None:
        return []
    parts = zip(finished.tokens, finished.logprobs, finished.top_logprobs, strict=True)
    return [_digest(int(token), float(logprob), top) for token, logprob, top in parts]


def guarantee(row: Mapping[str, Any]) -> str:
    """What a cell's row can say of its texts: unchecked, exact, near-tie, different, or bitwise."""
    verdict = str(row["lossless"] or "unchecked")
    compared = row.get("bitwise")
    same = compared is not None and not compared["differing"]
    return "bitwise" if same and verdict == "exact" else verdict


def _digest(token: int, logprob: float, top: Sequence[tuple[int, float]]) -> int:
    ids = np.array([token, *(other for other, _ in top)], dtype=np.int64)
    values = np.array([logprob, *(value for _, value in top)], dtype=np.float32)
    found = hashlib.sha256(ids.tobytes() + values.tobytes()).digest()
    return int.from_bytes(found[:_BYTES], "little")
