"""Live requests on the host: from verified tokens to events, and every ending. No torch."""

from __future__ import annotations

import math

import numpy as np

from recguide_core.engine import emit
from recguide_core.engine.events import Event
from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, PrefillChunk
from recguide_core.engine.scheduler import Live, Scheduler
from recguide_core.engine.settle import Verified, set_seed, take_drafts
from recguide_core.records import (
    Finish,
    Finished,
    FloatArray,
    IntArray,
    Origin,
    Outcome,
    Request,
    RequestTable,
    Source,
)

_OWN_DRAFTS = frozenset({int(Source.NONE), int(Source.DRAFT), int(Source.DRAFTER)})


class Ledger:
    """Who is alive, what they have emitted, and how they end.

    Every ending (stop, length, abort, error) goes through `end`, which gives slot and pages back.
    """

    def __init__(self, table: RequestTable, scheduler: Scheduler, eos_ids: frozenset[int]) -> None:
        self.table = table
        self.scheduler = scheduler
        self.eos_ids = eos_ids
        self.needs = ReadoutNeeds()
        self.by_key: dict[str, Live] = {}

    def enter(self, request: Request, fixed_block: int) -> None:
        """A new request joins the queue."""
        prompt = np.asarray(request.prompt, dtype=np.int64)
        live = Live(request, prompt, fixed_block=fixed_block)
        self.by_key[request.key] = live
        self.scheduler.add(live)

    def emit_rounds(
        self,
        outcome: Outcome,
        verified: Verified,
        sources: IntArray,
        margins: FloatArray,
        readings: StepReadings,
    ) -> list[Event]:
        """What the rounds of a step gave out.

        Args:
            sources: of the verified drafts [m]; margins: of their tokens [m, MAX_BLOCK].
        """
        # Once for all requests: numpy scalars cost more than the rest of a short round.
        columns = (
            outcome.who,
            outcome.matched,
            outcome.width,
            sources,
            outcome.entropy,
            outcome.hit,
            verified.read_from,
            verified.entropy,
            verified.tokens,
            margins[:, : verified.tokens.shape[1]],
        )
        rounds = zip(*(column.tolist() for column in columns), strict=True)
        return [self._emit_round(readings, *one) for one in rounds]

    def _emit_round(
        self,
        readings: StepReadings,
        slot: int,
        matched: int,
        width: int,
        source: int,
        entropy: float,
        hit: int,
        read: int,
        entropies: list[float],
        tokens: list[int],
        margins: list[float],
    ) -> Event:
        live, accepted = self.scheduler.running[slot], matched + 1
        self.scheduler.pages.commit(slot, accepted)
        live.rounds += 1
        live.forwards += 1
        live.reused += source not in _OWN_DRAFTS
        origins = emit.origins_of(width, matched, accepted)
        # A sum is NaN when a part of it is. Decisions behind the first mismatch are nobody's.
        faulty = math.isnan(sum(entropies[:accepted]))
        event = self._emit(live, tokens[:accepted], origins, read, readings, faulty)
        live.round_tokens += len(event.tokens)
        event.block, event.accepted, event.source = width, accepted, source
        event.margins = [*margins[1:accepted], 1.0][: len(event.tokens)]
        event.entropy, event.hit = entropy, hit
        if event.finished is not None:
            event.finished.round_tokens = live.round_tokens
        return event

    def settle_chunks(self, step: PackedStep, readings: StepReadings) -> list[Event]:
        events = []
        for row, chunk in _chunk_rows(step):
            live = self.scheduler.running[chunk.slot]
            self.scheduler.pages.commit(chunk.slot, len(chunk.tokens))
            live.prefilled += len(chunk.tokens)
            self.table.committed[chunk.slot] += len(chunk.tokens)
            self.table.room[chunk.slot] -= len(chunk.tokens)
            if chunk.last:
                events += self._begin_decoding(live, chunk, step, row, readings)
        return events

    def _begin_decoding(
        self,
        live: Live,
        chunk: PrefillChunk,
        step: PackedStep,
        row: int,
        readings: StepReadings,
    ) -> list[Event]:
        read = int(step.read_start[row])
        first = int(readings.token[read])
        seed = first if live.resume is None else live.resume
        slots = np.array([chunk.slot])
        self.table.decoding[chunk.slot] = True
        set_seed(self.table, slots, np.array([seed]))
        if chunk.first_draft:
            take_drafts(
                self.table,
                slots,
                step.read_start[row + 1 : row + 2],
                np.array([chunk.first_draft]),
                np.array([Source.FIRST]),
                readings,
            )
        if live.resume is not None:
            live.resume = None
            return []
        faulty = bool(np.isnan(readings.entropy[read]))
        return [self._emit(live, [first], [int(Origin.PREFILL)], read, readings, faulty)]

    def _emit(
        self,
        live: Live,
        window: list[int],
        origins: list[int],
        read: int,
        readings: StepReadings,
        faulty: bool,
    ) -> Event:
        """Emit what stops and budget leave of a window; ends the request where they say so."""
        tokens, finish, error = emit.cut_at_stop(live, [] if faulty else window, self.eos_ids)
        if faulty:
            finish, error = Finish.ERROR, "the model's logits are not finite"
        count = len(tokens)
        event = Event(live.request.key, tokens, origins[:count])
        live.tokens += tokens
        live.origins += event.origins
        if live.request.logprobs is not None and readings.logprob is not None:
            event.logprobs = readings.logprob[read : read + count].tolist()
            event.top_logprobs = [readings.top.get(read + j, []) for j in range(count)]
            live.logprobs += event.logprobs
            live.top_logprobs += event.top_logprobs
        self.table.emitted[live.slot] += count
        self.table.remaining[live.slot] -= count
        if finish is not None:
            event.finished = self.end(live, finish, error)
        return event

    def end(self, live: Live, finish: Finish, error: str | None = None) -> Finished:
        self.needs.sampling.pop(live.slot, None)
        self.needs.logprobs.pop(live.slot, None)
        self.scheduler.close(live)
        del self.by_key[live.request.key]
        return emit.finished(live, finish, error)

    def note_needs(self, live: Live) -> None:
        request = live.request
        self.needs.sampling.pop(live.slot, None)
        self.needs.logprobs.pop(live.slot, None)
        if not request.sampling.greedy or request.sampling.logit_bias:
            self.needs.sampling[live.slot] = request.sampling
        if request.logprobs is not None:
            self.needs.logprobs[live.slot] = request.logprobs

    def drop_needs(self) -> None:
        """Forget the wishes of slots that were vacated by preemption."""
        for wishes in (self.needs.sampling, self.needs.logprobs):
            for slot in [slot for slot in wishes if slot not in self.scheduler.running]:
                del wishes[slot]


def _chunk_rows(step: PackedStep) -> list[tuple[int, PrefillChunk]]:
    """(row index, chunk) of a step's prompt chunks."""
    out, row = [], 0
    for chunk in step.chunks:
        out.append((row, chunk))
        row += 1 + (chunk.first_draft > 0)
    return out
