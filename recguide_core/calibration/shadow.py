"""Shadow decoding: draft and verify every block of the menu from the same committed state.

Rows never see their siblings, so one packed forward drafts all blocks of all requests and a
second one verifies them; only the block that the exploration chain chose commits. Behind the
chosen block a continuation branch is drafted as well, to learn how often it would be reused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recguide_core.calibration.explore import draw, next_block
from recguide_core.engine.machine import Machine
from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, pack
from recguide_core.policy.signals import valid_decisions
from recguide_core.records import FloatArray, IntArray, Readout, Row, Rows

RISKY_BELOW = 0.9
"""Tokens of positions with a smaller margin are kept; delta may be searched up to here."""

LONGEST = 4096
"""Tokens of a request at most."""
SPARE = 64

TraceRow = dict[str, Any]
"""One line of the trace table."""


@dataclass(frozen=True, slots=True)
class ShadowPrompt:
    """A prompt to decode: its set, its hash (which names it) and its token ids, int64 [n]."""

    data: str
    name: str
    tokens: IntArray


@dataclass(slots=True, eq=False)
class Live:
    """A request while its text is decoded."""

    prompt: ShadowPrompt
    slot: int
    committed: int
    seed: int
    emitted: int = 1
    round: int = 0
    block: int = 0
    rows: list[TraceRow] = field(default_factory=list)


@dataclass(slots=True)
class Draft:
    """Draft of one block: tokens and alternatives int64 [B], margin and p1 float32 [B]."""

    token: IntArray
    alt: IntArray
    margin: FloatArray
    confidence: FloatArray


class ShadowDecoder:
    """Decodes prompts in batches and yields the trace rows of each request as it ends.

    A request ends at EOS, or when fewer than a largest block of tokens is left of its budget or
    of the context: what follows could not be compared between blocks.

    Args:
        machine: what runs the rows.
        menu: block sizes, ascending; 1 is plain AR.
        max_tokens: output limit of a request.
        batch: requests decoded at once.
    """

    def __init__(
        self,
        machine: Machine,
        menu: Sequence[int],
        *,
        seed: int = 0,
        max_tokens: int = 256,
        batch: int = 16,
    ) -> None:
        self.menu = tuple(menu)
        self.drafted = tuple(b for b in menu if b > 1)
        self.seed, self.max_tokens, self.batch = seed, max_tokens, batch
        self.config = machine.config
        self.eos = machine.eos_ids
        self.context = machine.context
        # Every block of the menu in flight, and a continuation behind the largest.
        self.in_flight = self._most_in_flight()
        self.pool, self.runner = machine.open(
            batch, min(self.context, LONGEST), self.in_flight + SPARE
        )
        self.prefix = np.zeros(batch, np.int64)

    def _most_in_flight(self) -> int:
        return sum(self.menu) + self.menu[-1]

    def fits(self, prompt: ShadowPrompt) -> bool:
        """Whether the context and the pool hold the prompt and one round behind it."""
        return len(prompt.tokens) + self.in_flight <= min(self.context, LONGEST)

    def run(self, prompts: Iterable[ShadowPrompt]) -> Iterator[list[TraceRow]]:
        """Trace rows of each request, in the order in which requests end."""
        waiting, live = deque(prompts), list[Live]()
        free = list(range(self.batch))
        while waiting or live:
            arriving = [
                (waiting.popleft(), free.pop()) for _ in range(min(len(waiting), len(free)))
            ]
            if arriving:
                live += self._prefill(arriving)
            for one in [one for one in live if self._over(one)]:
                live.remove(one)
                self._release(one)
                free.append(one.slot)
                yield one.rows
            if live:
                self._round(live)

    def _release(self, one: Live) -> None:
        self.pool.release(one.slot)
        self.prefix[one.slot] = 0

    def _over(self, one: Live) -> bool:
        left = min(self.max_tokens - one.emitted, self.context - one.committed - self.menu[-1])
        return one.seed in self.eos or left < self.menu[-1]

    def _prefill(self, arriving: list[tuple[ShadowPrompt, int]]) -> list[Live]:
        for prompt, slot in arriving:
            most = len(prompt.tokens) + self.max_tokens + self.in_flight
            self.pool.reserve(slot, len(prompt.tokens), most)
        rows = [
            Row(slot, prompt.tokens, 0, commit=True, readout=Readout.LAST)
            for prompt, slot in arriving
        ]
        step, readings = self._forward(rows)
        out = []
        for i, (prompt, slot) in enumerate(arriving):
            self._commit(slot, len(prompt.tokens))
            first = int(readings.token[step.read_start[i]])
            out.append(Live(prompt, slot, len(prompt.tokens), first))
        return out

    def _round(self, live: list[Live]) -> None:
        drafts = self._draft(live)
        rows: list[Row] = []
        places: list[dict[int, int]] = []
        for one, mine in zip(live, drafts, strict=True):
            name = one.prompt.name
            one.block = next_block(self.menu, one.block, draw(self.seed, name, one.round))
            places.append(self._verify_rows(one, mine, rows))
        step, readings = self._forward(rows)
        for one, mine, where in zip(live, drafts, places, strict=True):
            self._settle(one, mine, where, step, readings)

    def _draft(self, live: list[Live]) -> list[dict[int, Draft]]:
        if not self.drafted:
            return [{} for _ in live]
        rows = [self._draft_row(one, block, one.seed) for one in live for block in self.drafted]
        step, readings = self._forward(rows)
        out, row = [], 0
        for one in live:
            self.pool.commit(one.slot, 0)
            mine = {}
            for block in self.drafted:
                at = slice(step.read_start[row], step.read_start[row] + block)
                token = readings.token[at].copy()
                token[0] = one.seed
                mine[block] = Draft(
                    token, readings.alt[at], readings.margin[at], readings.confidence[at]
                )
                row += 1
            out.append(mine)
        return out

    def _draft_row(self, one: Live, block: int, first: int) -> Row:
        tokens = [first] + [self.config.mask_id] * (block - 1)
        return Row(one.slot, tokens, one.committed, bidirectional=True, adapter=True)

    def _verify_rows(self, one: Live, mine: dict[int, Draft], rows: list[Row]) -> dict[int, int]:
        """Append the request's rows, the committing one first; block -> row, 0 -> continuation."""
        where = {one.block: len(rows)}
        tokens = mine[one.block].token if one.block > 1 else [one.seed]
        rows.append(Row(one.slot, tokens, one.committed, commit=True))
        if one.block > 1:
            where[0] = len(rows)
            rows.append(self._continuation(one, one.block, where[one.block]))
        for block in self.drafted:
            if block != one.block:
                where[block] = len(rows)
                rows.append(Row(one.slot, mine[block].token, one.committed))
        return where

    def _continuation(self, one: Live, block: int, parent: int) -> Row:
        return Row(
            one.slot,
            [self.config.mask_id] * block,
            one.committed + block,
            parent=parent,
            parent_len=block,
            bidirectional=True,
            adapter=True,
        )

    def _settle(
        self,
        one: Live,
        mine: dict[int, Draft],
        where: dict[int, int],
        step: PackedStep,
        readings: StepReadings,
    ) -> None:
        next_slot0 = int(readings.token[step.read_start[where[0]]]) if 0 in where else -1
        for block in self.menu:
            # Decision 0 is the same in every row: the answer to the seed.
            row = where.get(block, where[one.block])
            at = int(step.read_start[row])
            tokens, entropy = readings.token[at : at + block], readings.entropy[at : at + block]
            line = self._line(one, block, mine.get(block), tokens, entropy)
            if block == one.block:
                line["chosen"] = True
                if line["full"] and block > 1:
                    line["branch"] = "hit" if next_slot0 == line["verdict"] else "miss"
            one.rows.append(line)
        chosen = next(r for r in one.rows[-len(self.menu) :] if r["chosen"])
        accepted = chosen["matched"] + 1
        self._commit(one.slot, accepted)
        one.committed += accepted
        one.emitted += accepted
        one.seed = chosen["verdict"]
        one.round += 1
        if chosen["eos"]:
            one.seed = next(iter(self.eos))

    def _line(
        self, one: Live, block: int, draft: Draft | None, tokens: IntArray, entropy: FloatArray
    ) -> TraceRow:
        matched, margin = 0, np.empty(0, np.float32)
        confidence, risky = margin, np.empty(0, np.int64)
        top1, top2 = risky, risky
        if draft is not None:
            agree = tokens[:-1] == draft.token[1:]
            matched = int(np.cumprod(agree).sum())
            margin, confidence = draft.margin[1:], draft.confidence[1:]
            risky = np.flatnonzero(margin < RISKY_BELOW) + 1
            top1, top2 = draft.token[risky], draft.alt[risky]
        window = tokens[: matched + 1].tolist()
        ends = [i for i, token in enumerate(window) if token in self.eos]
        full = matched == block - 1
        count = int(valid_decisions(np.array(block), np.array(matched)))
        return {
            "data": one.prompt.data,
            "request": one.prompt.name,
            "round": one.round,
            "block_size": block,
            "chosen": False,
            "committed": one.committed,
            "accepted": ends[0] + 1 if ends else matched + 1,
            "matched": matched,
            "full": full,
            "eos": bool(ends),
            "reject_position": -1 if full else matched + 1,
            "entropy": _rounded(entropy[:count]),
            "margin": _rounded(margin),
            "confidence": _rounded(confidence),
            "risky": risky.tolist(),
            "top1": top1.tolist(),
            "top2": top2.tolist(),
            "verdict": window[-1],
            "branch": "",
        }

    def _forward(self, rows: list[Row]) -> tuple[PackedStep, StepReadings]:
        step = pack(Rows.of(rows), self.prefix)
        for slot, count in zip(step.slots.tolist(), np.diff(step.offset).tolist(), strict=True):
            room = self.pool.reserve(slot, int(self.prefix[slot]) + count)
            assert room, "the pool holds a full batch"
            self.pool.begin(slot, count)
        return step, self.runner.execute(step, ReadoutNeeds())

    def _commit(self, slot: int, tokens: int) -> None:
        self.pool.commit(slot, tokens)
        self.prefix[slot] += tokens


def _rounded(values: Any) -> list[float]:
    return [round(float(v), 6) for v in values]
