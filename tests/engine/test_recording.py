"""Shadow rounds and recordings against the engine that they stand in for."""

import numpy as np
import pytest
from harness import demo_prompts, generate, planner_of

from recguide_core.calibration.record import Recorder, record_prompts
from recguide_core.calibration.recording import Recorded, load_recordings
from recguide_core.calibration.shadow import ShadowDecoder, ShadowPrompt
from recguide_core.engine.core import EngineCore
from recguide_core.engine.engine import Engine
from recguide_core.engine.machine import EmbeddedMachine
from recguide_core.engine.settings import EngineSettings
from recguide_core.pages import PageTable
from recguide_core.records import Request
from recguide_core.tuning.replay import ReplayExecutor

TOKENS = 64
BLOCKS = (4, 8, 16)
MASK = -2


@pytest.fixture(scope="module")
def prompts(tiny):
    ids = demo_prompts(tiny, 6)
    return [ShadowPrompt("demo", f"p{i}", np.asarray(p, np.int64)) for i, p in enumerate(ids)]


@pytest.fixture(scope="module")
def recorded(tiny, prompts):
    texts = Recorder(EmbeddedMachine(tiny), BLOCKS, max_tokens=TOKENS, batch=3).record(prompts)
    return Recorded(texts, TOKENS, tiny.eos_ids).take(p.name for p in prompts)


def rounds(engine, prompts):
    """(tokens, [(block, accepted, source), ...]) of each prompt."""
    for p in prompts:
        engine.submit(Request(p.name, p.tokens, TOKENS))
    out = {p.name: ([], []) for p in prompts}
    for event in engine.run():
        tokens, found = out[event.key]
        tokens += event.tokens
        if event.block:
            found.append((event.block, event.accepted, event.source))
    return out


def real(tiny, planner, prompts):
    settings = EngineSettings(max_requests=4, prefill_chunk=0, context=768)
    return rounds(Engine(tiny, planners=[planner], settings=settings), prompts)


def replayed(tiny, planner, prompts, recorded):
    core = EngineCore(
        executor=ReplayExecutor(recorded.texts, MASK),
        pages=PageTable(4 * 64, 16),
        planners=[planner],
        settings=EngineSettings(max_requests=4, prefill_chunk=0),
        context=768,
        mask_id=MASK,
        eos_ids=tiny.eos_ids,
    )
    return rounds(core, prompts)


def test_recorded_text_is_what_ar_gives(tiny, prompts, recorded):
    expected = generate(tiny, planner_of("ar"), [p.tokens for p in prompts], TOKENS)
    for text, finished in zip(recorded.texts, expected, strict=True):
        assert text.text.tolist() == finished.tokens.tolist()


@pytest.mark.parametrize(
    ("method", "block"), [("ar", None), ("linear", 4), ("linear", 16), ("overlap", 8), ("tidar", 4)]
)
def test_replay_makes_the_rounds_of_the_model(tiny, prompts, recorded, method, block):
    planner = planner_of(method, block) if block else planner_of(method)
    expected = real(tiny, planner, prompts)
    got = replayed(tiny, planner, prompts, recorded)
    assert got == expected
    if method == "overlap":
        sources = {s for _, found in got.values() for _, _, s in found}
        assert {1, 2} <= sources, "no correction was reused: the comparison shows nothing"


def test_shadow_rounds_are_the_recorded_ones(tiny, prompts, recorded):
    decoder = ShadowDecoder(EmbeddedMachine(tiny), (1, *BLOCKS), seed=3, max_tokens=TOKENS, batch=2)
    by_name = {t.name: t for t in recorded.texts}
    seen = set()
    for lines in decoder.run(prompts):
        for line in lines:
            text = by_name[line["request"]]
            here = line["committed"] - len(text.prompt)
            if line["block_size"] == 1:
                assert line["verdict"] == text.text[here + 1]
                continue
            j = BLOCKS.index(line["block_size"])
            draft, check = text.draft[here, j], text.check[here, j]
            matched = line["matched"]
            assert (check[:matched] == draft[1 : matched + 1]).all()
            assert check[matched] == line["verdict"]
            assert line["full"] or check[matched] != draft[matched + 1]
            np.testing.assert_allclose(
                line["entropy"], text.entropy[here, j, : len(line["entropy"])], atol=2e-4
            )
            behind = here + line["block_size"]
            if line["branch"] and behind < text.positions:
                right = text.free[behind, j, 0] == text.text[behind]
                assert line["branch"] == ("hit" if right else "miss")
            seen.add((line["block_size"], line["chosen"]))
    assert seen >= {(b, c) for b in BLOCKS for c in (False, True)}


def test_recordings_are_kept_and_belong_to_one_model(tiny, prompts, recorded, tmp_path):
    path = tmp_path / "r.npz"
    calls = []

    def make(some):
        return record_prompts(
            tiny,
            some,
            BLOCKS,
            max_tokens=TOKENS,
            path=path,
            on_request=lambda done, total: calls.append(total),
        )

    first = make(prompts[:2])
    assert set(calls) == {2}
    both = make(prompts[:3])
    assert calls[-1] == 1, "only the new prompt is decoded"
    assert [t.name for t in both.texts] == ["p0", "p1", "p2"]
    for a, b in zip(first.texts, both.texts, strict=False):
        assert (a.check == b.check).all()
        assert a.margin.dtype == b.margin.dtype == np.float32
    about = {"model_hash": "another", "blocks": list(BLOCKS), "max_tokens": TOKENS}
    assert load_recordings(path, about) == []
