"""The method dflash: a second model drafts from the target's hidden states, losslessly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recguide_core.engine.drafter import DFlashCache
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import LoadedModel, load_model
from recguide_core.records import Request
from recguide_core.tiny.drafter import DFlashDrafter, DrafterShape

MASK = 3


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("nld-tiny")


def drafter_of(model: LoadedModel, seed: int = 0) -> DFlashDrafter:
    torch.manual_seed(seed)
    return DFlashDrafter(DrafterShape(), model.transformer.weights.embed)


def generate(model: LoadedModel, method: str, **options: object) -> dict[str, list[int]]:
    block = 8 if method == "dflash" else None
    engine = Engine(
        model,
        planners=[make_planner(method, block)],
        settings=EngineSettings(max_requests=3, prefill_chunk=16),
        **options,  # type: ignore[arg-type]
    )
    for i, text in enumerate(("Add 3 and 9.", "Write a list of four fruits.", "Hello there")):
        prompt = model.render([{"role": "user", "content": text}])
        assert model.tokenizer is not None
        engine.submit(Request(str(i), np.array(model.tokenizer.encode(prompt)), 24))
    done = [event.finished for event in engine.run() if event.finished]
    engine.pages.check_integrity()
    return {f.key: f.tokens.tolist() for f in done}


def test_cached_context_equals_the_stateless_drafter(model: LoadedModel) -> None:
    drafter = drafter_of(model)
    cache = DFlashCache(drafter, MASK)
    hidden = torch.randn(40, 256)
    with torch.inference_mode():
        cache.extend(0, 0, hidden[:17])
        cache.extend(0, 17, torch.randn(9, 256))  # of which two were accepted, then replaced
        cache.extend(0, 19, hidden[19:40])
        cache.extend(0, 17, hidden[17:40])
        for start in (17, 25, 40):
            mine = cache.draft(0, 77, start, 8)
            theirs = drafter.draft(hidden[:start], 77, start, 8)
            torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


def test_output_equals_ar_and_the_target_never_drafts(model: LoadedModel) -> None:
    class Spy(DFlashCache):
        calls = 0

        def draft(self, slot: int, seed: int, start: int, block: int) -> torch.Tensor:
            Spy.calls += 1
            return super().draft(slot, seed, start, block)

    spy = Spy(drafter_of(model), MASK)
    assert generate(model, "dflash", drafter=spy) == generate(model, "ar")
    assert Spy.calls > 0


def test_a_perfect_drafter_is_accepted_in_full(model: LoadedModel) -> None:
    plain = generate(model, "ar")
    prompts: dict[int, list[int]] = {}

    class Oracle:
        """Knows the whole text by (slot, position): accepted to the last token if wired right."""

        def extend(self, slot: int, start: int, hidden: torch.Tensor) -> None:
            if start == 0:
                prompts[slot] = []

        def draft(self, slot: int, seed: int, start: int, block: int) -> torch.Tensor:
            text = plain[str(slot)]
            length = lengths[slot]
            logits = torch.zeros(block, model.config.vocab)
            for j in range(1, block):
                at = start + j - length
                logits[j, text[at] if at < len(text) else 2] = 5.0
            return logits

    assert model.tokenizer is not None
    lengths = [
        len(model.tokenizer.encode(model.render([{"role": "user", "content": text}])))
        for text in ("Add 3 and 9.", "Write a list of four fruits.", "Hello there")
    ]
    engine = Engine(
        model,
        planners=[make_planner("dflash", 8)],
        settings=EngineSettings(max_requests=3),
        drafter=Oracle(),
    )
    for i, text in enumerate(("Add 3 and 9.", "Write a list of four fruits.", "Hello there")):
        prompt = model.render([{"role": "user", "content": text}])
        engine.submit(Request(str(i), np.array(model.tokenizer.encode(prompt)), 24))
    rounds = [e for e in engine.run() if e.block]
    whole = [e for e in rounds if e.finished is None]
    assert whole
    assert all(e.accepted == e.block for e in whole)
