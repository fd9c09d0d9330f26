"""Draft-side oracles: equality with AR cannot see a wrong mask, position or adapter; these can."""

import numpy as np
import pytest
from dense import row_logits
from harness import generate, planner_of
from packed import commit_prompt, make_pool, run_rows

from recguide_core.kernels.readout_torch import read_out
from recguide_core.records import Act, BranchKind, Row, RowKind, Source

CERTAIN = 1e-3
"""Top-2 gap of probabilities below which two ways of computing may part."""


def fresh_draft(model, text: list[int], slot0: int, B: int):
    """Read-out of one draft row behind a committed text, from a cache made for it alone."""
    pool = make_pool(model, len(text) + B + 16, 16)
    if text:
        commit_prompt(model, pool, 0, text)
    pool.reserve(0, len(text) + B)
    pool.begin(0, B)
    own = [slot0] + [model.config.mask_id] * (B - 1)
    row = Row(0, own, len(text), bidirectional=True, adapter=True)
    _, logits = run_rows(model, pool, [row])
    return read_out(logits, model.config.mask_id, model.config.eos_ids)


class DraftOracle:
    """Observer: every block under verification is what a fresh draft would have given.

    A continuation, TiDAR or first draft was made with a MASK at slot 0, so its oracle has one too.
    """

    def __init__(self, model) -> None:
        self.model = model
        self.live = None
        self.checked: dict[Source, int] = {}
        self.unsure = 0

    def on_step(self, engine) -> None:
        self.live = {s: [*x.request.prompt.tolist(), *x.tokens] for s, x in texts_of(engine)}

    def on_rounds(self, view) -> None:
        for i, slot in enumerate(view.outcome.who.tolist()):
            if not view.table.has_draft[slot]:
                continue
            B = int(view.table.draft_block[slot])
            source = Source(int(view.table.draft_source[slot]))
            P = int(view.table.committed[slot])
            text = self.live[slot]
            assert len(text) == P + 1
            known = source in (Source.DRAFT, Source.CORRECTION)
            slot0 = text[P] if known else self.model.config.mask_id
            fresh = fresh_draft(self.model, text[:P], slot0, B)
            used = view.table.draft[slot, :B]
            assert used[0] == text[P]
            for j in range(1, B):
                if fresh.margin[j] < CERTAIN:
                    self.unsure += 1
                    continue
                assert used[j] == fresh.token[j], f"{source.name} at slot {j} of {B}, P = {P}"
                for name in ("margin", "confidence"):
                    gap = getattr(view.table, name)[slot, j] - getattr(fresh, name)[j]
                    assert abs(gap) < 1e-3, f"{source.name}: {name} at slot {j}"
            if source == Source.CONTINUATION:
                assert fresh.token[0] == text[P]
            assert int(view.outcome.width[i]) <= B
            self.checked[source] = self.checked.get(source, 0) + 1


def texts_of(engine):
    return list(engine.scheduler.running.items())


class Follow:
    """Keeps the texts that the oracle needs, from before the step that it observes."""

    def __init__(self, oracle: DraftOracle) -> None:
        self.oracle = oracle

    def __call__(self, engine) -> None:
        self.oracle.on_step(engine)


@pytest.mark.parametrize(
    ("method", "block", "sources"),
    [
        ("linear", 8, {Source.DRAFT}),
        ("overlap", 4, {Source.DRAFT, Source.CORRECTION, Source.CONTINUATION}),
        ("overlap", 16, {Source.DRAFT, Source.CORRECTION}),
        ("tidar", 4, {Source.FIRST, Source.POSITION}),
        ("recguide", None, {Source.DRAFT, Source.CORRECTION}),
    ],
)
def test_reused_blocks_equal_fresh_drafts_on_nld_tiny(tiny, pinned, method, block, sources):
    prompts, _ = pinned
    oracle = DraftOracle(tiny)
    generate(
        tiny,
        planner_of(method, block),
        prompts,
        28,
        max_requests=1 if method == "recguide" else 8,
        prefill_chunk=16,
        observer=oracle,
        on_step=Follow(oracle),
    )
    assert sources <= set(oracle.checked), oracle.checked
    assert oracle.unsure < 60


@pytest.mark.parametrize(("method", "block"), [("overlap", 5), ("tidar", 3), ("recguide", None)])
def test_reused_blocks_equal_fresh_drafts_with_an_adapter(
    random_tiny, random_prompts, method, block
):
    """The random model has a strong adapter, which nld-tiny need not have."""
    oracle = DraftOracle(random_tiny)
    generate(
        random_tiny,
        planner_of(method, block),
        random_prompts,
        20,
        max_requests=1 if method == "recguide" else 4,
        page_size=3,
        kv_tokens=600,
        observer=oracle,
        on_step=Follow(oracle),
    )
    assert sum(oracle.checked.values()) > 20


class RowOracle:
    """Wraps an executor: logits of every row of every step against the dense-mask forward."""

    def __init__(self, engine, config, tensors, adapter) -> None:
        self.engine = engine
        self.real = engine.executor
        self.truth = (config, tensors, adapter)
        self.kinds: set[RowKind] = set()
        self.compared = 0

    def execute(self, step, needs):
        kept = []
        head = self.engine.model.transformer.head
        self.engine.model.transformer.head = lambda h: kept.append(head(h)) or kept[-1].clone()
        try:
            readings = self.real.execute(step, needs)
        finally:
            self.engine.model.transformer.head = head
        if len(step.readout):
            self._compare(step, kept[0])
        return readings

    def _compare(self, step, logits) -> None:
        rows = step.rows
        for row in range(len(rows.length)):
            slot = int(rows.request[row])
            live = self.engine.scheduler.running[slot]
            P = self.engine.pages.committed(slot)
            prefix = [*live.request.prompt.tolist(), *live.tokens][:P]
            span = slice(*step.row_start[row : row + 2].tolist())
            own = rows.tokens[span].tolist()
            parent = []
            if rows.parent[row] >= 0:
                first = step.row_start[rows.parent[row]]
                parent = rows.tokens[first : first + rows.parent_len[row]].tolist()
            want = row_logits(
                *self.truth,
                prefix,
                parent,
                own,
                bidirectional=bool(rows.bidirectional[row]),
                adapter_on=bool(rows.adapter[row]),
            )
            reads = slice(*step.read_start[row : row + 2].tolist())
            places = step.readout[reads] - span.start
            if not len(places):
                continue
            assert (logits[reads] - want[places]).abs().max() < 2e-4
            self.kinds.add(RowKind(int(rows.kind[row])))
            self.compared += 1


@pytest.mark.parametrize(
    ("method", "block"), [("linear", 4), ("overlap", 6), ("tidar", 3), ("recguide", None)]
)
def test_every_row_of_a_run_equals_the_dense_forward(random_tiny, random_prompts, method, block):
    from checkpoints import published_adapter, published_config, published_tensors
    from harness import engine_of, finish_all, request

    config = published_config("14b")
    engine = engine_of(
        random_tiny, planner_of(method, block), max_requests=3, prefill_chunk=8, kv_tokens=900
    )
    oracle = RowOracle(engine, config, published_tensors(config), published_adapter(config))
    engine.executor = oracle
    for i, prompt in enumerate(random_prompts[:5]):
        engine.submit(request(i, prompt, 9))
    finish_all(engine)
    engine.assert_all_returned()
    assert oracle.compared > 20
    wanted = {RowKind.PREFILL, RowKind.VERIFY}
    wanted |= {RowKind.BRANCH} if method in ("overlap", "tidar") else set()
    wanted |= {RowKind.DRAFT} if method != "tidar" else set()
    assert wanted <= oracle.kinds


def test_the_adapter_is_on_for_drafts_and_branches_only(random_tiny, random_prompts):
    from harness import engine_of, finish_all, request

    engine = engine_of(random_tiny, planner_of("overlap", 4), kv_tokens=800)
    seen = set()
    real = engine.executor

    class Looking:
        def execute(self, step, needs):
            kinds = step.rows.kind.tolist()
            seen.update(zip(kinds, step.rows.adapter.tolist(), strict=True))
            return real.execute(step, needs)

    engine.executor = Looking()
    engine.submit(request(0, random_prompts[2], 20))
    finish_all(engine)
    assert seen == {
        (RowKind.PREFILL, False),
        (RowKind.VERIFY, False),
        (RowKind.DRAFT, True),
        (RowKind.BRANCH, True),
    }
    assert BranchKind.CORRECTION == 0
    assert Act.IDLE == 0


def test_the_oracle_notices_a_wrong_mask_position_and_adapter(tiny, pinned):
    """Each fault that losslessness cannot see makes the oracle fail."""
    from recguide_core.engine import core

    prompts, _ = pinned

    def wrong_position(step):
        branch = step.rows.kind == RowKind.BRANCH
        step.positions[np.repeat(branch, step.rows.length)] += 1

    def wrong_mask(step):
        branch = np.repeat(step.rows.kind == RowKind.BRANCH, step.rows.length)
        step.vis[branch, 3] = np.maximum(step.vis[branch, 3] - 1, step.vis[branch, 2])

    for fault in (wrong_position, wrong_mask):
        original = core.pack

        def faulty(*args, original=original, fault=fault):
            step = original(*args)
            step.vis = step.vis.copy()
            fault(step)
            return step

        core.pack = faulty
        try:
            oracle = DraftOracle(tiny)
            with pytest.raises(AssertionError, match="at slot"):
                generate(
                    tiny,
                    planner_of("overlap", 8),
                    prompts[:4],
                    28,
                    observer=oracle,
                    on_step=Follow(oracle),
                )
        finally:
            core.pack = original


def test_direction_is_visible_on_the_bundled_model(tiny, pinned):
    """Sanity of the oracle's own draft: a causal row of MASKs gives other logits."""
    prompts, ar = pinned
    text, B = prompts[0], 8
    own = [int(ar[0].tokens[0])] + [tiny.config.mask_id] * (B - 1)
    logits = []
    for both_ways in (True, False):
        pool = make_pool(tiny, len(text) + B + 16, 16)
        commit_prompt(tiny, pool, 0, text)
        pool.reserve(0, len(text) + B)
        pool.begin(0, B)
        logits.append(run_rows(tiny, pool, [Row(0, own, len(text), bidirectional=both_ways)])[1])
    assert (logits[0] - logits[1]).abs().max() > 0.1
