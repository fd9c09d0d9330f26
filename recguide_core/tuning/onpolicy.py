"""Policies on the engine at a load: real decisions on recorded texts, time from the cost table.

History depends on the policy, so a rho that suits the calibration's states need not suit those
that the policy makes. The loop, the planner and the tokens are those of serving; forwards are
answered from recordings and time is computed, so a run costs no more than its host work. No torch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from recguide_core.calibration.recording import Recorded
from recguide_core.engine.core import EngineCore
from recguide_core.engine.events import Observer
from recguide_core.engine.planners import Planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.engine.virtual import VirtualClock
from recguide_core.pages import PageTable
from recguide_core.policy.cost import CostModel
from recguide_core.policy.value import Reals
from recguide_core.records import MAX_BLOCK, Request, Source
from recguide_core.tuning.replay import ReplayExecutor

_PAGE = 16
_MASK_ID = -2
_FROM_BRANCH = (Source.CORRECTION, Source.CONTINUATION, Source.POSITION, Source.FIRST)


@dataclass(slots=True)
class LoadRun:
    """One policy at one load.

    Attributes:
        method: its name; `concurrency`: C.
        tokens, ms: of each prompt's request, float64 [prompts]; a step's time is shared alike by
            the requests in flight, and prompts that were sent again add up.
        blocks: rounds by block size; `rounds`, `reused`: rounds, and those drafted by a branch.
    """

    method: str
    concurrency: int
    tokens: Reals
    ms: Reals
    blocks: dict[int, int] = field(default_factory=dict)
    rounds: int = 0
    reused: int = 0

    @property
    def rate(self) -> float:
        """Tokens of one request per ms of batch time: what rho is compared with."""
        return float(self.tokens.sum() / (self.ms.sum() * self.concurrency))

    @property
    def tokens_per_s(self) -> float:
        """Output of the whole batch."""
        return 1e3 * float(self.tokens.sum() / self.ms.sum())

    @property
    def score(self) -> float:
        """Geometric mean over prompts of tokens per ms, by which settings are chosen.

        In the pooled rate a few hard prompts are most of the time, and what easy ones could gain
        is lost in it; here every prompt's relative gain counts alike.
        """
        served = (self.ms > 0) & (self.tokens > 0)
        if not served.any():
            return 0.0
        return float(np.exp(np.log(self.tokens[served] / self.ms[served]).mean()))

    def per_prompt(self) -> Reals:
        """(tokens, ms) of each prompt, float64 [prompts, 2]."""
        return np.stack([self.tokens, self.ms], axis=1)


def run_load(
    planner: Planner,
    recorded: Recorded,
    concurrency: int,
    cost: CostModel,
    *,
    positions: int,
    method: str | None = None,
    observer: Observer | None = None,
) -> LoadRun:
    """Serve the prompts with C in flight and add up decode tokens and time while C are.

    Prompts are sent again until as many requests have ended as there are prompts (and at least C),
    so that the load stays full. Steps with prompt chunks are not counted: every method pays them
    alike.
    """
    texts = recorded.texts
    engine = _engine(planner, recorded, concurrency, cost, positions)
    if observer is not None:
        engine.observers.append(observer)
    clock = engine.clock
    run = LoadRun(method or planner.name, concurrency, np.zeros(len(texts)), np.zeros(len(texts)))
    sent, finished = 0, 0
    wanted = max(len(texts), concurrency)
    live: deque[str] = deque()
    while finished < wanted:
        while len(live) < concurrency:
            text = texts[sent % len(texts)]
            key = f"{sent % len(texts)}/{sent}"
            engine.submit(Request(key, text.prompt, recorded.budget(text)))
            live.append(key)
            sent += 1
        # All slots decoding: nobody can be admitted, so the step carries no prompt.
        counted = int(engine.table.decoding.sum()) == concurrency
        began = clock.now()
        events = engine.step()
        took = 1e3 * (clock.now() - began)
        for key in live if counted else ():
            run.ms[_prompt(key)] += took / concurrency
        for event in events:
            if counted and event.block:
                run.tokens[_prompt(event.key)] += len(event.tokens)
                run.blocks[event.block] = run.blocks.get(event.block, 0) + 1
                run.rounds += 1
                run.reused += int(event.source in _FROM_BRANCH)
            if event.finished is not None:
                live.remove(event.key)
                finished += 1
    return run


def _prompt(key: str) -> int:
    return int(key.split("/")[0])


def _engine(
    planner: Planner,
    recorded: Recorded,
    concurrency: int,
    cost: CostModel,
    positions: int,
) -> EngineCore:
    longest = max(len(t.prompt) for t in recorded.texts) + recorded.max_tokens
    context = longest + 2 * MAX_BLOCK + 1
    in_flight = planner.max_in_flight + MAX_BLOCK
    pages = concurrency * (-(-(context + in_flight) // _PAGE) + 16)
    return EngineCore(
        executor=ReplayExecutor(recorded.texts, _MASK_ID),
        pages=PageTable(pages, _PAGE),
        planners=[planner],
        settings=EngineSettings(
            max_requests=concurrency, entropy_positions=positions, prefill_chunk=0
        ),
        context=context,
        mask_id=_MASK_ID,
        eos_ids=recorded.eos_ids,
        clock=VirtualClock(cost),
    )
