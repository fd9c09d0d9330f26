"""What host and device-resident rounds tell each other: pinned buffers that take turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from recguide_core.kernels.round_state import RoundPlan

_ALIGN = 16
"""Parts of a buffer start at multiples of so many elements: kernels load 16 bytes at once."""
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Staged:
    """What the host says about a round; views of pinned memory, by slot.

    Attributes:
        alive: 0 takes a request out before the round, int32 [N].
        target: wanted B of each request where the device chooses, int32 [N].
        plan: what everybody does where the host chooses.
    """

    alive: Ints
    target: Ints
    plan: RoundPlan


@dataclass(frozen=True, slots=True)
class Record:
    """What a round left; views that hold until the round after the next is launched.

    Attributes:
        plan: what the device chose for the next round, meaningless where it chooses nothing.
        finished: see `Emitted`, int32 [N].
        tokens: packed tokens; ids: int32 [tokens, 2]; stats: fp32 [tokens, 5].
    """

    plan: RoundPlan
    finished: Ints
    tokens: int
    ids: Ints
    stats: npt.NDArray[np.float32]


class Turn:
    """Host buffers of one round under way."""

    def __init__(self, up: int, pages: int, down: int, slots: int, branches: int, pinned: bool):
        self.up = torch.zeros(up, dtype=torch.int32, pin_memory=pinned)
        self.pages = torch.zeros(pages, dtype=torch.int32, pin_memory=pinned)
        self.down = torch.zeros(down, dtype=torch.int32, pin_memory=pinned)
        self.tokens = 0
        self.event = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        alive, target = self.up[:slots].numpy(), self.up[slots : 2 * slots].numpy()
        self.staged = Staged(alive, target, RoundPlan.over(self.up[2 * slots :], slots, branches))


def aligned(size: int) -> int:
    """The next start of a part."""
    return -(-size // _ALIGN) * _ALIGN
