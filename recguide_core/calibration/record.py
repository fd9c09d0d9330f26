"""Making recordings with the model: every block drafted and checked at every position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from recguide_core.calibration.recording import (
    CHECKS,
    DRAFTED,
    FREE,
    Builder,
    Recorded,
    Recording,
    blank_grids,
    load_recordings,
    save_recordings,
)
from recguide_core.calibration.shadow import Live, ShadowDecoder, ShadowPrompt
from recguide_core.engine.machine import EmbeddedMachine, Machine
from recguide_core.engine.readings import StepReadings
from recguide_core.model.registry import LoadedModel
from recguide_core.records import Row


class Recorder(ShadowDecoder):
    """A shadow decoder that commits one token a round and keeps what every block did there.

    Args:
        blocks: drafting block sizes, ascending.
    """

    def __init__(
        self, machine: Machine, blocks: Sequence[int], *, max_tokens: int, batch: int
    ) -> None:
        super().__init__(machine, (1, *blocks), max_tokens=max_tokens, batch=batch)
        self.builders: dict[int, Builder] = {}
        self._ended: list[Builder] = []

    def _most_in_flight(self) -> int:
        return 1 + 2 * sum(self.drafted)

    def record(
        self,
        prompts: Iterable[ShadowPrompt],
        on_request: Callable[[int], None] = lambda done: None,
    ) -> list[Recording]:
        """Recordings of the prompts, in the order in which their texts end."""
        out: list[Recording] = []
        for _ in self.run(prompts):
            out += [builder.done() for builder in self._ended]
            self._ended.clear()
            on_request(len(out))
        return out

    def _over(self, one: Live) -> bool:
        left = min(self.max_tokens - one.emitted, self.context - one.committed - self.in_flight)
        return one.seed in self.eos or left < 1

    def _release(self, one: Live) -> None:
        super()._release(one)
        self._ended.append(self.builders.pop(one.slot))

    def _prefill(self, arriving: list[tuple[ShadowPrompt, int]]) -> list[Live]:
        live = super()._prefill(arriving)
        for one in live:
            prompt = one.prompt
            self.builders[one.slot] = Builder(prompt.name, prompt.tokens, self.drafted, [one.seed])
        return live

    def _round(self, live: list[Live]) -> None:
        mask = self.config.mask_id
        rows = [
            self._draft_row(one, block, first)
            for one in live
            for block in self.drafted
            for first in (one.seed, mask)
        ]
        step, readings = self._forward(rows)
        grids = [blank_grids(len(self.drafted)) for _ in live]
        row = 0
        for one, mine in zip(live, grids, strict=True):
            self.pool.commit(one.slot, 0)
            for j, block in enumerate(self.drafted):
                _take(mine, DRAFTED, j, readings, int(step.read_start[row]), block)
                _take(mine, FREE, j, readings, int(step.read_start[row + 1]), block)
                mine["draft"][j, 0] = one.seed
                row += 2
        self._check(live, grids)

    def _check(self, live: list[Live], grids: list[dict[str, np.ndarray]]) -> None:
        """Verify every draft, and commit the seed alone."""
        rows: list[Row] = []
        places = []
        for one, mine in zip(live, grids, strict=True):
            lead = len(rows)
            rows.append(Row(one.slot, [one.seed], one.committed, commit=True))
            where = {}
            for j, block in enumerate(self.drafted):
                where[j, 0] = where[j, 1] = len(rows)
                rows.append(Row(one.slot, mine["draft"][j, :block], one.committed))
                behind = mine["free"][j, 1:block]
                if (behind != mine["draft"][j, 1:block]).any():
                    where[j, 1] = len(rows)
                    rows.append(Row(one.slot, [one.seed, *behind.tolist()], one.committed))
            places.append((lead, where))
        step, readings = self._forward(rows)
        for one, mine, (lead, where) in zip(live, grids, places, strict=True):
            for (j, kind), row in where.items():
                block, at = self.drafted[j], int(step.read_start[row])
                _, check, entropy = CHECKS[kind]
                mine[check][j, :block] = readings.token[at : at + block]
                mine[entropy][j, :block] = readings.entropy[at : at + block]
            answer = int(readings.token[step.read_start[lead]])
            self.builders[one.slot].add(mine, answer)
            self._commit(one.slot, 1)
            one.committed += 1
            one.emitted += 1
            one.round += 1
            one.seed = answer


def _take(
    grids: dict[str, np.ndarray],
    names: Sequence[str],
    j: int,
    readings: StepReadings,
    at: int,
    block: int,
) -> None:
    """Copy a draft's readings into the grids `names`, in the order of `DRAFTED`."""
    for name, source in zip(names, ("token", "alt", "margin", "confidence"), strict=True):
        grids[name][j, :block] = getattr(readings, source)[at : at + block]


def record_prompts(
    model: LoadedModel,
    prompts: Sequence[ShadowPrompt],
    blocks: Sequence[int],
    *,
    max_tokens: int,
    path: Path,
    batch: int = 16,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> Recorded:
    """Recordings of the prompts, kept in `path` so that the next run needs only new ones."""
    about = {"model_hash": model.hash, "blocks": list(blocks), "max_tokens": max_tokens}
    known = {one.name: one for one in load_recordings(path, about)}
    recorder = Recorder(EmbeddedMachine(model), blocks, max_tokens=max_tokens, batch=batch)
    fitting = [p for p in prompts if recorder.fits(p)]
    missing = [p for p in fitting if p.name not in known]
    if missing:
        total = len(missing)
        fresh = recorder.record(missing, lambda done: on_request(done, total))
        known.update((one.name, one) for one in fresh)
        save_recordings(path, about, list(known.values()))
    return Recorded(list(known.values()), max_tokens, model.eos_ids).take(p.name for p in fitting)
