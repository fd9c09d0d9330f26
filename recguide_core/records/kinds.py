"""Array types, sizes and the closed sets of the vocabulary."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

MAX_BLOCK = 32
"""Largest block size B; the published checkpoints are trained at 32."""


class Readout(IntEnum):
    """Which tokens of a row need logits."""

    NONE = 0
    LAST = 1
    ALL = 2


class RowKind(IntEnum):
    """Why a row exists; for accounting only, no kernel looks at it."""

    PREFILL = 0
    VERIFY = 1
    DRAFT = 2
    BRANCH = 3
    DRAFTER = 4
    """Runs through the drafter model, not through the target."""


class BranchKind(IntEnum):
    """Hypothesis under which a branch row drafts the next block (Sec. 5.1)."""

    CORRECTION = 0
    """The draft fails at position p and the verifier answers `alt`."""
    CONTINUATION = 1
    """The whole block is accepted."""
    POSITION = 2
    """The draft fails at position p, token unknown: slot 0 is a MASK (the TiDAR layout)."""
    FIRST = 3
    """The first draft of a request, made beside its last prompt chunk."""


class Act:
    """What a request does in this step.

    Plain integers: numpy compares an array with an enum member several times slower, and these
    comparisons are most of a step's planning.
    """

    IDLE: Final = 0
    DRAFT: Final = 1
    VERIFY: Final = 2
    """Verify a prepared draft; width 1 without a draft is one plain AR step."""
    DRAFTER: Final = 3
    """Draft with a separate drafter model (DFlash) instead of the target's own rows."""


class Origin(IntEnum):
    """Where an emitted token came from (colours of the playground, columns of the trace)."""

    PREFILL = 0
    AR = 1
    DRAFT = 2
    CORRECTION = 3
    BONUS = 4


class Source(IntEnum):
    """How the draft under verification was made."""

    NONE = 0
    DRAFT = 1
    CORRECTION = 2
    CONTINUATION = 3
    POSITION = 4
    FIRST = 5
    DRAFTER = 6
    """A separate drafter model (DFlash)."""


class Finish(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
