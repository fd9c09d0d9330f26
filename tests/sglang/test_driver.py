"""The driver and its executors over scattered slots, without SGLang."""

import contextlib

import numpy as np
import pytest
import torch
from checkpoints import published_config, write_checkpoint
from rows_world import World, scattered_cache

from recguide_core.engine.methods import make_planner
from recguide_core.kernels.attention_reference import attend
from recguide_core.kernels.graphs import GraphCache
from recguide_core.model.registry import load_model
from recguide_core.sglang_plugin.executors import FlatExecutor
from recguide_core.sglang_plugin.graphs import GraphExecutor, ScopedCapture
from recguide_core.sglang_plugin.step_records import PromptPart
from recguide_core.sglang_plugin.stock import uniform

BUDGETS = [30, 9, 17, 1]


class TwinKernels:
    """`TritonRoundOps.attend_rows` in plain torch, from the same buffers."""

    def __init__(self, tokens, requests):
        self.tokens, self.requests = tokens, requests

    def prepare(self, q_ptr, prefix):
        assert len(q_ptr) == self.requests + 1 and len(prefix) == self.requests
        self.q_ptr, self.prefix = q_ptr.tolist(), prefix.tolist()

    def attend_rows(self, q, k, v, vis, table, k_pool, v_pool, out):
        assert len(q) == self.tokens
        done = self.q_ptr[-1]
        found = attend(q, k, v, k_pool, v_pool, table.pages, table.page_ptr, self.q_ptr,
                       self.prefix, vis, table.page, dtype=torch.float32)  # fmt: skip
        out[:done] = found[:done]


def flat(module, cache):
    return FlatExecutor(module, cache)


def graphs(module, cache):
    cache_of_graphs = GraphCache(None, 1 << 30, lambda: 0)
    return GraphExecutor(module, cache, graphs=cache_of_graphs, make_ops=TwinKernels)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint with an adapter that is strong enough to be seen."""
    folder = write_checkpoint(tmp_path_factory.mktemp("model") / "8b", published_config("8b"))
    return load_model(str(folder), max_positions=512)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(3)
    return [rng.integers(130, 380, n) for n in (23, 9, 40, 5)]


@pytest.fixture(scope="module")
def expected(model, texts):
    return World(model, flat, [make_planner("ar")]).run(texts, BUDGETS)


def test_ar_over_the_row_table_equals_the_embedded_engine(model, texts, expected):
    from engines import Embedded, greedy

    embedded = Embedded.__new__(Embedded)
    embedded.model, embedded.rounds = model, []
    requests = [greedy(str(i), t, n) for i, (t, n) in enumerate(zip(texts, BUDGETS, strict=True))]
    done = embedded.run(requests)
    assert [done[str(i)].tokens.tolist() for i in range(len(texts))] == expected


@pytest.mark.parametrize("make", [flat, graphs])
@pytest.mark.parametrize("method", ["linear", "overlap", "tidar"])
def test_every_method_gives_the_tokens_of_ar(model, texts, expected, method, make):
    world = World(model, make, [make_planner(method, 4)], chunk=7)
    assert world.run(texts, BUDGETS) == expected
    if make is graphs:
        assert world.driver.executor.graphs.report.reasons["the device has no graphs"] > 10


def test_a_graphs_inputs_give_the_statistics_of_the_eager_step(model, texts):
    """Padding, the adapter mask and the writes to slot 0 change nothing that is read."""
    seen = []
    for make in (flat, graphs):
        world = World(model, make, [make_planner("overlap", 6)])
        rounds = []
        world.driver.observers.append(lambda r, rounds=rounds: rounds.append(r.outcome))
        world.run(texts, BUDGETS)
        seen.append(rounds)
    assert len(seen[0]) == len(seen[1])
    for a, b in zip(*seen, strict=True):
        for name in ("who", "width", "matched", "hit", "hit_block"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert np.allclose(a.entropy, b.entropy, atol=1e-4)


class FakeDevice:
    """Captures by remembering the callable; counts what is asked of it, and where."""

    def __init__(self):
        self.log = []
        self.inside = False

    def warm(self, forward):
        self.log.append("warm")
        forward()

    def capture(self, forward):
        self.log.append("capture inside" if self.inside else "capture")
        return forward

    def scope(self):
        @contextlib.contextmanager
        def enter():
            self.inside = True
            yield
            self.inside = False

        return enter()


def test_steps_replay_the_graph_of_their_bucket(model, texts, expected):
    """Ranks' collectives are captured inside their scope; a replay follows its inputs."""
    device = FakeDevice()
    cache = GraphCache(ScopedCapture(device, device.scope), 1 << 30, lambda: 0)

    def make(module, rows):
        return GraphExecutor(module, rows, graphs=cache, make_ops=TwinKernels)

    world = World(model, make, [make_planner("overlap", 4)])
    assert world.run(texts, BUDGETS) == expected
    assert cache.report.replays > 2 * len(cache.report.captured) > 0
    assert device.log.count("capture inside") == len(cache.report.captured)
    assert "capture" not in device.log
    assert world.driver.executor.replayed


def test_methods_may_differ_inside_one_forward(model, texts, expected):
    planners = [make_planner("linear", 4), make_planner("overlap", 4), make_planner("ar")]
    world = World(model, flat, planners)
    outputs = []
    for i, prompt in enumerate(texts):
        part = PromptPart(f"r{i}", i, 0, prompt, True, BUDGETS[i], planner=i % 3)
        outputs.append([int(world.driver.prefill([part])[0][0])])
    alive = {i: len(t) for i, t in enumerate(texts)}
    out = dict(enumerate(outputs))
    while alive:
        world._decode(alive, out, BUDGETS)
    assert [out[i] for i in range(len(texts))] == expected


def test_a_requests_own_block_bounds_its_first_draft(model, texts, expected):
    """As in the embedded engine: the draft beside the prompt is no wider than the block asked."""
    world = World(model, flat, [make_planner("tidar", 8)])
    widths = []
    world.driver.observers.append(lambda r: widths.extend(r.outcome.width.tolist()))
    assert world.run(texts, BUDGETS, block=3) == expected
    assert max(widths) == 3


def test_bucketed_steps_leave_some_requests_out_and_change_no_token(model, texts, expected):
    world = World(model, flat, [make_planner("overlap", 4)], batching="bucketed")
    assert world.run(texts, BUDGETS) == expected


def test_a_retracted_request_starts_its_history_anew(model, texts):
    world = World(model, flat, [make_planner("linear", 4)])
    world.run(texts[:1], [12])
    driver = world.driver
    part = PromptPart("r0", 5, 0, texts[0], True, 12)
    driver.prefill([part])
    slot = driver._slot["r0"]
    assert world.cache.row[slot] == 5
    assert driver.table.rounds[slot] == 0 and np.isnan(driver.table.e1[slot])


def test_requests_that_end_with_their_prompt_do_not_use_up_the_slots(model, texts):
    world = World(model, flat, [make_planner("linear", 4)], slots=4)
    for i in range(12):
        world.driver.prefill([PromptPart(f"x{i}", i % 8, 0, texts[1], True, 1)])
    assert len(world.driver._slot) <= 4


def test_a_disagreement_about_committed_tokens_is_a_bug_that_shows(model, texts):
    from recguide_core.sglang_plugin.step_records import Turn

    world = World(model, flat, [make_planner("linear", 4)])
    world.driver.prefill([PromptPart("a", 0, 0, texts[1], True, 8)])
    with pytest.raises(AssertionError, match="committed"):
        world.driver.decode([Turn("a", 0, len(texts[1]) + 1, 7)])


def test_uniform_masks_show_each_token_what_its_row_may_see(model, texts):
    """Each packed token's line of the mask is its prefix and its two intervals, nothing else."""
    steps = []
    world = World(model, flat, [make_planner("overlap", 4)])
    run = world.driver.executor.execute
    world.driver.executor.execute = lambda s, n: (steps.append(s), run(s, n))[1]
    world.run(texts, BUDGETS)
    mixed = [s for s in steps if not s.chunks and len(set(np.diff(s.offset))) > 1]
    assert mixed, "every step was uniform already"
    for step in mixed:
        made = uniform(step, 100)
        counts = np.diff(step.offset)
        at = 0
        for r, n in enumerate(counts.tolist()):
            prefix, lo = int(step.prefix[r]), int(step.offset[r])
            size = made.width * (prefix + made.width)
            mask = made.mask[at : at + size].reshape(made.width, -1)
            at += size
            for t in range(n):
                a0, a1, b0, b1 = step.vis[lo + t] - lo
                seen = set(range(prefix))
                seen |= {prefix + j for j in (*range(a0, a1), *range(b0, b1))}
                assert set(np.flatnonzero(mask[t])) == seen
            for t in range(n, made.width):
                assert np.flatnonzero(mask[t]).tolist()[-1] == prefix + t
                assert not mask[:n, prefix + t].any()
        assert at == len(made.mask)
        assert np.array_equal(made.tokens[made.place], step.rows.tokens)


def test_a_row_that_reaches_past_its_line_is_caught(model):
    from recguide_core.engine.rows import pack
    from recguide_core.records import Row, Rows
    from recguide_core.sglang_plugin.row_cache import writes_of

    cache = scattered_cache(model.config, rows=2, width=16)
    rows = Rows.of([Row(0, [5, 6, 7], 14, commit=True)])
    with pytest.raises(AssertionError, match="past its line"):
        writes_of(cache, pack(rows, np.full(4, 14)))
