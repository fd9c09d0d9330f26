"""Times single forwards with the engine's own runner, on prefixes of zeros.

A forward's time does not depend on the values in the cache, so no prompt is needed. What is
timed is `execute`: upload, attention planning, forward, head, read-out and the copy back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from recguide_core.engine.machine import Machine
from recguide_core.engine.readings import ReadoutNeeds
from recguide_core.engine.rows import PackedStep, pack
from recguide_core.profiling.grid import Point
from recguide_core.records import Readout, Row, RowKind, Rows


class Bench:
    """A machine with room for every point.

    Args:
        seconds: clock; `time.thread_time` leaves out what others take of a busy machine.
    """

    def __init__(
        self,
        machine: Machine,
        points: Sequence[Point],
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._machine = machine
        self._seconds = seconds
        self._needs = ReadoutNeeds()
        self._pool, self._runner = machine.open(*room_for(points))

    def time_ms(self, point: Point, repeats: int) -> list[float]:
        """Milliseconds of `repeats` forwards of this shape, one untimed before them."""
        step = self._set_up(point)
        try:
            self._once(point, step)
            return [self._once(point, step) for _ in range(repeats)]
        finally:
            for slot in range(point.requests):
                self._pool.release(slot)

    def _set_up(self, point: Point) -> PackedStep:
        rows: list[Row] = []
        contexts = point.contexts
        for slot, context in enumerate(contexts.tolist()):
            in_flight = point.block * (1 + point.branches)
            assert self._pool.reserve(slot, context + in_flight), "the pool was sized for it"
            self._pool.begin(slot, context)
            self._pool.commit(slot, context)
            rows += rows_of(point, slot, context, self._machine.config.mask_id, len(rows))
        return pack(Rows.of(rows), contexts)

    def _once(self, point: Point, step: PackedStep) -> float:
        in_flight = point.block * (1 + point.branches)
        for slot in range(point.requests):
            self._pool.begin(slot, in_flight)
        _wait(self._machine.device)
        began = self._seconds()
        self._runner.execute(step, self._needs)
        _wait(self._machine.device)
        elapsed = 1e3 * (self._seconds() - began)
        for slot in range(point.requests):
            self._pool.commit(slot, 0)
        return elapsed


def room_for(points: Sequence[Point]) -> tuple[int, int, int]:
    """Requests, committed tokens and in-flight tokens of each that hold every point."""
    return (
        max(p.requests for p in points),
        max(int(p.contexts.max()) for p in points),
        max(p.block * (1 + p.branches) for p in points),
    )


def rows_of(point: Point, slot: int, context: int, mask_id: int, first_row: int) -> list[Row]:
    """Rows of one request at this point, behind `context` tokens; `first_row` is the index of its
    first row.
    """
    masks = np.full(point.block, mask_id, np.int64)
    if point.kind == "draft" or (point.kind == "mixed" and slot % 2 == 0):
        return [Row(slot, masks, context, bidirectional=True, adapter=True, kind=RowKind.DRAFT)]
    prefill = point.kind == "prefill"
    main = Row(
        slot,
        masks,
        context,
        commit=True,
        readout=Readout.LAST if prefill else Readout.ALL,
        kind=RowKind.PREFILL if prefill else RowKind.VERIFY,
    )
    places = np.linspace(1, point.block, point.branches).astype(int).tolist()
    branches = [
        Row(
            slot,
            masks,
            context + place,
            parent=first_row,
            parent_len=place,
            bidirectional=True,
            adapter=True,
            kind=RowKind.BRANCH,
        )
        for place in places
    ]
    return [main, *branches]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
