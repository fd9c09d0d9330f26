"""Making recordings with the model: every block drafted and checked at every position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from recguide_core.calibration.recording import (
    Builder,
    Recorded,
    Recording,
    load_recordings,
    save_recordings,
)
from recguide_core.calibration.shadow import Draft, Live, ShadowDecoder, ShadowPrompt
from recguide_core.engine.readings import StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.model.registry import LoadedModel
from recguide_core.records import MAX_BLOCK, Row


class Recorder(ShadowDecoder):
    """A shadow decoder that commits one token a round and keeps what every block did there.

    Args:
        blocks: drafting block sizes, ascending.
    """

    def __init__(
        self, model: LoadedModel, blocks: Sequence[int], *, max_tokens: int, batch: int
    ) -> None:
        super().__init__(model, (1, *blocks), max_tokens=max_tokens, batch=batch)
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
        drafts = self._draft(live)
        rows: list[Row] = []
        leads = []
        for one, mine in zip(live, drafts, strict=True):
            leads.append(len(rows))
            rows.append(Row(one.slot, [one.seed], one.committed, commit=True))
            for block in self.drafted:
                check = len(rows)
                rows.append(Row(one.slot, mine[block].token, one.committed))
                rows.append(self._continuation(one, block, check))
        step, readings = self._forward(rows)
        for one, mine, lead in zip(live, drafts, leads, strict=True):
            self._keep(one, mine, lead, step, readings)

    def _keep(
        self, one: Live, mine: dict[int, Draft], lead: int, step: PackedStep, got: StepReadings
    ) -> None:
        shape = (len(self.drafted), MAX_BLOCK)
        ints = {name: np.zeros(shape, np.int64) for name in ("draft", "alt", "check")}
        reals = {name: np.zeros(shape, np.float32) for name in ("confidence", "entropy")}
        reals["margin"] = np.ones(shape, np.float32)
        follow = np.zeros(len(self.drafted), np.int64)
        for j, block in enumerate(self.drafted):
            at = int(step.read_start[lead + 1 + 2 * j])
            ints["draft"][j, :block] = mine[block].token
            ints["alt"][j, :block] = mine[block].alt
            ints["check"][j, :block] = got.token[at : at + block]
            reals["margin"][j, :block] = mine[block].margin
            reals["confidence"][j, :block] = mine[block].confidence
            reals["entropy"][j, :block] = got.entropy[at : at + block]
            follow[j] = got.token[step.read_start[lead + 2 + 2 * j]]
        answer = int(got.token[step.read_start[lead]])
        self.builders[one.slot].add({**ints, **reals}, follow, answer)
        self._commit(one.slot, 1)
        one.committed += 1
        one.emitted += 1
        one.round += 1
        one.seed = answer


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
    recorder = Recorder(model, blocks, max_tokens=max_tokens, batch=batch)
    fitting = [p for p in prompts if recorder.fits(p)]
    missing = [p for p in fitting if p.name not in known]
    if missing:
        total = len(missing)
        fresh = recorder.record(missing, lambda done: on_request(done, total))
        known.update((one.name, one) for one in fresh)
        save_recordings(path, about, list(known.values()))
    return Recorded(list(known.values()), max_tokens, model.eos_ids).take(p.name for p in fitting)
