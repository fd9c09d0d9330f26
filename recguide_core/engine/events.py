"""What the engine tells its callers after a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from recguide_core.engine.readings import StepReadings
from recguide_core.engine.rows import PackedStep
from recguide_core.engine.settle import Verified
from recguide_core.records import Finished, Outcome, Plan, RequestTable, StepShape


@dataclass(slots=True)
class Event:
    """Tokens that one request got in one step, and its end if this was it.

    Attributes:
        tokens: new token ids; origins: `Origin` of each.
        block, accepted: width and accepted length A of the round; 0 for the prefill's token.
        source: `Source` of the verified draft; margins: draft margin of each emitted token,
            1 where it was not drafted.
        entropy: e_t in nats, NaN outside rounds.
        hit: index of the branch to be reused next, -1 for none.
    """

    key: str
    tokens: list[int]
    origins: list[int]
    block: int = 0
    accepted: int = 0
    source: int = 0
    margins: list[float] = field(default_factory=list)
    entropy: float = float("nan")
    hit: int = -1
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finished: Finished | None = None


@dataclass(slots=True)
class RoundView:
    """Everything about a settled step, before the table moves on; for observers.

    `keys` maps slots to request keys. Arrays are the engine's own: copy what is kept.
    """

    table: RequestTable
    plan: Plan
    step: PackedStep
    readings: StepReadings
    outcome: Outcome
    verified: Verified
    keys: dict[int, str]


class Observer(Protocol):
    """Traces, counters and calibration listen to rounds without the loop knowing them."""

    def on_rounds(self, view: RoundView) -> None:
        """Called once per step that verified something, before `advance`."""


@dataclass(slots=True)
class Counters:
    """Totals of an engine since its start."""

    steps: int = 0
    query_tokens: int = 0
    kv_tokens: int = 0
    step_seconds: float = 0.0
    plan_seconds: float = 0.0
    rounds: int = 0
    matched: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)

    def count(self, shape: StepShape) -> None:
        """Add one forward."""
        self.query_tokens += shape.query_tokens
        self.kv_tokens += shape.kv_tokens
        self.by_kind[shape.kind] = self.by_kind.get(shape.kind, 0) + 1
