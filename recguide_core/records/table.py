"""The live requests as a struct of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recguide_core.records.kinds import MAX_BLOCK, BoolArray, FloatArray, IntArray


@dataclass(slots=True)
class RequestTable:
    """What a planner may know of the live requests: struct of arrays over N slots.

    A slot holds one request from admission to its end. NaN means "no value yet".

    Attributes:
        live, decoding: slot in use; its prompt is in the cache and its seed is known. bool [N].
        committed: P, tokens whose K/V are committed, int64 [N].
        seed: newest token, not yet in the cache, int64 [N].
        emitted: tokens given out so far, int64 [N].
        remaining: tokens that may still be emitted, int64 [N].
        room: positions left in the context behind the committed prefix (limit - P), int64 [N].
        has_draft: a draft waits for verification, bool [N].
        draft_block: its B, int64 [N]; `draft_source`: `Source`, int64 [N].
        draft: draft tokens, slot 0 = seed, int64 [N, MAX_BLOCK].
        alt: best token other than the draft token, MASK and EOS, int64 [N, MAX_BLOCK].
        margin: M_i = p1 - p2 of the draft, float32 [N, MAX_BLOCK]; slot 0 and unused are 1.
        confidence: C_i = p1, float32 [N, MAX_BLOCK].
        e1, e2: e_{t-1}, e_{t-2} in nats, float32 [N].
        prev_block: B_{t-1}, 0 without history; `prev_full`: F_{t-1}. int64, bool [N].
        rounds: completed rounds, int64 [N].
        fixed_block: block size that the request asks for, 0 = planner's choice, int64 [N].
        planner: index of the planner that serves the slot, int64 [N].
    """

    live: BoolArray
    decoding: BoolArray
    committed: IntArray
    seed: IntArray
    emitted: IntArray
    remaining: IntArray
    room: IntArray
    has_draft: BoolArray
    draft_block: IntArray
    draft_source: IntArray
    draft: IntArray
    alt: IntArray
    margin: FloatArray
    confidence: FloatArray
    e1: FloatArray
    e2: FloatArray
    prev_block: IntArray
    prev_full: BoolArray
    rounds: IntArray
    fixed_block: IntArray
    planner: IntArray

    @classmethod
    def sized(cls, slots: int) -> RequestTable:
        """An empty table of `slots` slots."""

        def ints() -> IntArray:
            return np.zeros(slots, np.int64)

        def flags() -> BoolArray:
            return np.zeros(slots, bool)

        grid = (slots, MAX_BLOCK)
        return cls(
            live=flags(),
            decoding=flags(),
            committed=ints(),
            seed=ints(),
            emitted=ints(),
            remaining=ints(),
            room=ints(),
            has_draft=flags(),
            draft_block=ints(),
            draft_source=ints(),
            draft=np.zeros(grid, np.int64),
            alt=np.full(grid, -1, np.int64),
            margin=np.ones(grid, np.float32),
            confidence=np.ones(grid, np.float32),
            e1=np.full(slots, np.nan, np.float32),
            e2=np.full(slots, np.nan, np.float32),
            prev_block=ints(),
            prev_full=flags(),
            rounds=ints(),
            fixed_block=ints(),
            planner=ints(),
        )

    def reset(self, slot: int) -> None:
        """Forget the request that held `slot`."""
        for name in ("committed", "seed", "emitted", "remaining", "room", "draft_block"):
            getattr(self, name)[slot] = 0
        for name in ("draft_source", "prev_block", "rounds", "fixed_block", "planner"):
            getattr(self, name)[slot] = 0
        for name in ("live", "decoding", "has_draft", "prev_full"):
            getattr(self, name)[slot] = False
        self.e1[slot] = self.e2[slot] = np.nan
