"""The vocabulary on one page: requests, rows, plans and round outcomes.

Everything here is data (numpy at most). Per-request Python objects exist only at the edges
(`Request`, `Finished`); inside a step all requests live in struct-of-arrays records, so a step's
host work does not grow with tokens and policy decides for a whole batch at once.

Symbols of the paper: P committed length, B block size, d_i draft token, M_i top-2 margin,
e_t mean verifier entropy of round t, A accepted length, F full-block flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; the default is greedy.

    With `temperature > 0` token t_i = argmax(z_i / T + g(seed, position)): position-keyed
    Gumbel-max, so every method emits the tokens of seeded AR sampling.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(slots=True)
class Request:
    """One generation job.

    Attributes:
        key: caller's name of the request, unique among live requests.
        prompt: token ids, int64 [n], n >= 1.
        max_tokens: at most this many tokens are emitted (>= 1).
        stop_ids: token ids that end the output (included in it), beside the model's EOS.
        ignore_eos: go on after EOS (benchmarks with a fixed output length).
        stop: called with each emitted token in order; True ends the output at that token.
        logprobs: None, or how many top alternatives to report beside each token's logprob.
        planner: index of the engine's planner that serves this request (0 = default).
    """

    key: str
    prompt: IntArray
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop: Callable[[int], bool] | None = None
    logprobs: int | None = None
    planner: int = 0


@dataclass(slots=True)
class Row:
    """One row of a forward; the struct-of-arrays form of many is `Rows`.

    A query of this row sees the request's committed prefix [0, P), the first `parent_len`
    tokens of row `parent`, and its own row (causally, or fully when `bidirectional`).
    """

    request: int
    tokens: npt.ArrayLike
    start: int
    parent: int = -1
    parent_len: int = 0
    bidirectional: bool = False
    adapter: bool = False
    commit: bool = False
    readout: Readout = Readout.ALL
    kind: RowKind = RowKind.VERIFY


@dataclass(slots=True)
class Rows:
    """All rows of one forward, struct of arrays: n rows, T tokens.

    Rows of a request are adjacent and its commit row comes first, so that in-flight K/V of that
    row land at positions P, P+1, ... of the request.

    Attributes:
        request: slot of each row's request, int64 [n].
        length, start: query tokens and first position id, int64 [n].
        parent: index of the parent row or -1, int64 [n]; `parent_len` int64 [n].
        bidirectional, adapter, commit: bool [n].
        readout: `Readout` values, int64 [n]; `kind`: `RowKind` values, int64 [n].
        tokens: packed token ids, int64 [T].
    """

    request: IntArray
    length: IntArray
    start: IntArray
    parent: IntArray
    parent_len: IntArray
    bidirectional: BoolArray
    adapter: BoolArray
    commit: BoolArray
    readout: IntArray
    kind: IntArray
    tokens: IntArray

    @classmethod
    def of(cls, rows: list[Row]) -> Rows:
        """Pack single rows (prompt chunks, tests)."""
        tokens = [np.asarray(r.tokens, dtype=np.int64) for r in rows]

        def column(name: str) -> IntArray:
            return np.array([int(getattr(r, name)) for r in rows], dtype=np.int64)

        return cls(
            request=column("request"),
            length=np.array([len(t) for t in tokens], dtype=np.int64),
            start=column("start"),
            parent=column("parent"),
            parent_len=column("parent_len"),
            bidirectional=column("bidirectional").astype(bool),
            adapter=column("adapter").astype(bool),
            commit=column("commit").astype(bool),
            readout=column("readout"),
            kind=column("kind"),
            tokens=np.concatenate(tokens) if tokens else np.empty(0, np.int64),
        )


@dataclass(slots=True)
class Plan:
    """What each request of a step does, aligned with `who` (n requests, at most K branches each).

    Attributes:
        who: slots of the requests, int64 [n].
        act: `Act` values, int64 [n].
        block: B of the draft or width of the verify row, int64 [n].
        branch_kind: `BranchKind` or -1 for none, int64 [n, K]; used branches come first.
        branch_parent: tokens of the verify row that the branch sees, int64 [n, K].
        branch_alt: token at slot 0 of the branch, or -1 for a MASK there, int64 [n, K].
        branch_block: B of the branch, int64 [n, K].
    """

    who: IntArray
    act: IntArray
    block: IntArray
    branch_kind: IntArray
    branch_parent: IntArray
    branch_alt: IntArray
    branch_block: IntArray

    @classmethod
    def empty(cls, who: IntArray, branches: int = 0) -> Plan:
        """A plan in which everybody idles."""
        n = len(who)
        none, nothing = np.zeros((2, 2, n, branches), np.int64)
        none -= 1
        return cls(
            who=who,
            act=np.zeros(n, np.int64),
            block=np.zeros(n, np.int64),
            branch_kind=none[0],
            branch_parent=nothing[0],
            branch_alt=none[1],
            branch_block=nothing[1],
        )


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


@dataclass(slots=True)
class Outcome:
    """What one step's rounds came to, aligned with the verifying requests of a `Plan` (m of them).

    Produced by the engine from tokens, or by the simulator from an acceptance model; both then
    go through the same `advance`.

    Attributes:
        who: slots, int64 [m]; `width`: verified width B, int64 [m].
        matched: accepted drafts (A - 1), int64 [m]; full when matched = B - 1.
        entropy: e_t over the round's valid decisions in nats, float32 [m].
        hit: index of the reusable branch of the request, -1 for none, int64 [m].
        hit_block: B of that branch, int64 [m].
    """

    who: IntArray
    width: IntArray
    matched: IntArray
    entropy: FloatArray
    hit: IntArray
    hit_block: IntArray

    @property
    def full(self) -> BoolArray:
        return np.asarray(self.matched == self.width - 1)


@dataclass(frozen=True, slots=True)
class StepShape:
    """Size of one forward, as the cost table knows it.

    Attributes:
        kind: prefill | ar | draft | verify | fused | mixed | drafter (the second model's).
        requests: requests with rows in the forward.
        query_tokens: packed tokens; `kv_tokens`: committed prefix tokens read, summed.
        block_size: largest block in the forward; `branches`: branch rows in it.
    """

    kind: str
    requests: int
    query_tokens: int
    kv_tokens: int
    block_size: int
    branches: int


@dataclass(slots=True)
class Finished:
    """A request at its end.

    Attributes:
        tokens: emitted token ids, int64 [n]; the stopping token is included.
        origins: `Origin` per token, int64 [n].
        logprobs: of each token under the verifier, float32 [n], when asked for.
        rounds, forwards, reused: decode rounds; forwards that carried the request's decode rows;
            rounds whose draft came from a branch. The prefill counts for none of them.
        round_tokens: tokens that rounds emitted (the prefill's first token is none of them).
    """

    key: str
    tokens: IntArray
    origins: IntArray
    finish: Finish
    rounds: int
    forwards: int
    reused: int
    round_tokens: int
    logprobs: FloatArray | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    error: str | None = None
