"""Engines under watch: every step is checked, every ending accounted for."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from packed import commit_prompt, make_pool

from recguide_core.bench.lossless import classify
from recguide_core.engine.engine import Engine
from recguide_core.engine.events import Event, RoundView
from recguide_core.engine.guidance import FULL_MENU, Guidance
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import Planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import LoadedModel
from recguide_core.policy.branch_table import BranchTable
from recguide_core.policy.branches import BRANCHES
from recguide_core.policy.value import ANY, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK, Finished, Request, Sampling

DEMO = Path(__file__).parents[2] / "recguide_core" / "tiny" / "demo_prompts.jsonl"
HUGE = 1e6


@cache
def demo_texts() -> tuple[str, ...]:
    lines = DEMO.read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["prompt"] for line in lines)


def chat_ids(model: LoadedModel, text: str) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode(model.render([{"role": "user", "content": text}]))


def demo_prompts(model: LoadedModel, count: int) -> list[list[int]]:
    """Every k-th demo prompt, so that all categories take part."""
    texts = demo_texts()
    return [chat_ids(model, t) for t in texts[:: max(1, len(texts) // count)][:count]]


class WatchedEngine(Engine):
    """Checks ownership and book-keeping after every step.

    Attributes:
        poison: overwrite every slot that is not committed with huge finite values.
        on_step: called after each step with the engine.
    """

    poison = False
    on_step = None

    def step(self) -> list[Event]:
        events = super().step()
        self.check()
        if self.poison:
            self._poison()
        if self.on_step is not None:
            self.on_step(self)
        return events

    def check(self) -> None:
        self.pages.check_integrity()
        running = self.scheduler.running
        assert set(self.pages._held) == set(running), "pages belong to running requests"
        free = self.scheduler._free_slots
        assert sorted([*free, *running]) == list(range(self.settings.slots))
        waiting = {live.request.key for live in self.scheduler.waiting}
        held = {live.request.key for live in running.values()}
        assert set(self.ledger.by_key) == waiting | held
        table = self.table
        assert np.flatnonzero(table.live).tolist() == sorted(running)
        for slot, live in running.items():
            P = self.pages.committed(slot)
            assert table.committed[slot] == P
            assert P + table.room[slot] == self.context
            assert table.remaining[slot] == live.request.max_tokens - len(live.tokens)
            assert table.remaining[slot] > 0, "a request without budget is still running"
            if table.decoding[slot]:
                assert len(live.request.prompt) + len(live.tokens) - 1 == P
                assert table.seed[slot] == live.tokens[-1] == table.draft[slot, 0]
                assert table.room[slot] >= 1
            else:
                assert live.prefilled == P

    def _poison(self) -> None:
        keep = torch.zeros(len(self.pool.k[0]), dtype=torch.bool)
        for slot in self.scheduler.running:
            keep[torch.from_numpy(self.pool.slots(slot, 0, self.pool.committed(slot)))] = True
        for tensor in (*self.pool.k, *self.pool.v):
            tensor[~keep] = HUGE

    def assert_all_returned(self) -> None:
        assert self.idle
        self.pages.check_integrity()
        assert self.pages.free_pages == self.pages.pages
        assert len(self.scheduler._free_slots) == self.settings.slots
        assert not self.ledger.by_key
        assert not self.ledger.needs.sampling
        assert not self.ledger.needs.logprobs
        assert not self.table.live.any()


def engine_of(
    model: LoadedModel, planners: Planner | Sequence[Planner], **settings
) -> WatchedEngine:
    planners = list(planners) if isinstance(planners, Sequence) else [planners]
    drafter = settings.pop("drafter", None)
    settings.setdefault("context", min(model.config.max_positions, 512))
    settings.setdefault("kv_tokens", settings.get("max_requests", 8) * 768)
    return WatchedEngine(
        model, planners=planners, settings=EngineSettings(**settings), drafter=drafter
    )


def request(key, prompt, max_tokens, **options) -> Request:
    return Request(str(key), np.asarray(prompt, dtype=np.int64), max_tokens, **options)


def finish_all(engine: WatchedEngine) -> dict[str, Finished]:
    """Step to the end; the finished requests by key, their events checked against them."""
    done: dict[str, Finished] = {}
    streamed: dict[str, list[int]] = {}
    for event in engine.run():
        assert event.key not in done, "an event behind the end"
        streamed.setdefault(event.key, []).extend(event.tokens)
        assert len(event.origins) == len(event.tokens)
        if event.finished is not None:
            done[event.key] = event.finished
            tokens = event.finished.tokens.tolist()
            assert tokens[len(tokens) - len(streamed[event.key]) :] == streamed[event.key]
            assert len(event.finished.origins) == len(event.finished.tokens)
    return done


def generate(
    model: LoadedModel,
    planner: Planner | Sequence[Planner],
    prompts: Sequence[Sequence[int]],
    max_tokens: int = 24,
    *,
    sampling: Sampling | Sequence[Sampling] | None = None,
    fixed_block: Sequence[int] | None = None,
    choose: Sequence[int] | None = None,
    poison: bool = False,
    on_step=None,
    observer=None,
    options: dict | None = None,
    **settings,
) -> list[Finished]:
    """Finished requests in the order of `prompts`; everything must have come back."""
    engine = engine_of(model, planner, **settings)
    engine.poison, engine.on_step = poison, on_step
    if observer is not None:
        engine.observers.append(observer)
    for i, prompt in enumerate(prompts):
        chosen = sampling[i] if isinstance(sampling, Sequence) else sampling
        engine.submit(
            request(
                i,
                prompt,
                max_tokens,
                sampling=chosen or Sampling(),
                planner=0 if choose is None else choose[i],
                **(options or {}),
            ),
            0 if fixed_block is None else fixed_block[i],
        )
    done = finish_all(engine)
    engine.assert_all_returned()
    assert sorted(done) == sorted(str(i) for i in range(len(prompts)))
    return [done[str(i)] for i in range(len(prompts))]


def logits_after(model: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Logits behind a text, MASK removed, by one plain prefill."""
    pool = make_pool(model, len(tokens) + 16, 16)
    logits = commit_prompt(model, pool, 0, list(tokens))[-1]
    logits[model.config.mask_id] = -1e30
    return logits


def assert_lossless(model, prompts, expected, got, near_ties: int = 0) -> int:
    """Equal token by token and end by end; a difference must be a proven near-tie. Returns them."""

    def best_after(prefix):
        top = logits_after(model, prefix.tolist()).log_softmax(-1).topk(8)
        return dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))

    ties = 0
    for i, prompt in enumerate(prompts):
        verdict = classify(
            np.asarray(prompt), expected[i].tokens.tolist(), got[i].tokens.tolist(), best_after
        )
        assert verdict.kind != "different", f"request {i}: {verdict.evidence}"
        ties += verdict.kind == "near-tie"
        if verdict.kind == "exact":
            assert expected[i].finish == got[i].finish
    assert ties <= near_ties, f"{ties} near-ties"
    return ties


def toy_guidance(**changes) -> Guidance:
    """Tables made up so that every block of the menu wins somewhere and branches pay."""
    menu = FULL_MENU
    k = np.arange(MAX_BLOCK)
    edges = np.array([-1.2, -0.6, -0.2])
    rates = np.array([0.3, 0.75, 0.92, 0.985, 0.9])
    survival = np.zeros((len(rates), len(menu), MAX_BLOCK))
    for b, rate in enumerate(rates):
        for j, block in enumerate(menu):
            survival[b, j, :block] = rate ** k[:block]
    ones = np.ones(survival.shape[:2])
    strata = [
        Stratum(ANY, False, lagged, edges, survival, ones, ones.astype(np.int64))
        for lagged in (False, True)
    ]
    blocks = np.array([b for b in menu if b > 1])
    shape = (len(blocks), 2, BRANCHES, 8)
    table = BranchTable(0.5, blocks, np.full(shape, 0.4), np.full(shape, 9))
    known = {
        "value": ValueTable(menu, strata),
        "cost": ToyCost(),
        "rho": {1: 0.4, 32: 0.9},
        "branches": table,
    }
    return Guidance(**(known | changes))


class ToyCost:
    """5 ms a forward and 0.02 ms a token: an affine law."""

    def ms(self, shapes):
        return 5.0 + 0.02 * np.asarray(shapes.query_tokens, np.float64)


def planner_of(name: str, block: int | None = None, batching: str = "ragged") -> Planner:
    guidance = toy_guidance() if name in ("adaptive", "recguide") else None
    return make_planner(name, block, guidance, batching)


class Outcomes:
    """Observer: accepted lengths, branch hits by kind, widths."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.widths: list[int] = []
        self.hits: list[int] = []
        self.full: list[bool] = []

    def on_rounds(self, view: RoundView) -> None:
        self.accepted += (view.outcome.matched + 1).tolist()
        self.widths += view.outcome.width.tolist()
        self.full += view.outcome.full.tolist()
        entry = view.verified.entry
        for i, hit in enumerate(view.outcome.hit.tolist()):
            self.hits.append(-1 if hit < 0 else int(view.plan.branch_kind[entry[i], hit]))


def check_identities(done: Finished) -> None:
    """forwards = 2 x rounds - reused, for methods of one draft and one verify forward a round."""
    assert done.forwards == 2 * done.rounds - done.reused
    assert done.round_tokens == max(len(done.tokens) - 1, 0)
