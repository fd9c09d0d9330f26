"""Every kind of row in mixed batches against a dense-mask forward of a single sequence."""

import numpy as np
import pytest
import torch
from checkpoints import (
    MASK,
    VOCAB,
    published_adapter,
    published_config,
    published_tensors,
    write_checkpoint,
)
from dense import row_logits
from packed import commit_prompt, make_pool, run_rows

from recguide_core.model.registry import load_model
from recguide_core.records import Readout, Row

TOLERANCE = 1e-4
SIZES = ("3b", "8b", "14b")


@pytest.fixture(scope="module", params=SIZES)
def world(request, tmp_path_factory):
    """(config, tensors, adapter, loaded model) of one size."""
    config = published_config(request.param)
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), config)
    model = load_model(str(folder), max_positions=256)
    return config, published_tensors(config), published_adapter(config), model


def tokens_of(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, VOCAB, count).tolist()


def expected(world, prefix, rows, index):
    """Dense logits of one row of `rows`."""
    config, tensors, adapter, _ = world
    row = rows[index]
    parent = [] if row.parent < 0 else list(rows[row.parent].tokens)[: row.parent_len]
    return row_logits(
        config,
        tensors,
        adapter,
        prefix[row.request],
        parent,
        list(row.tokens),
        bidirectional=row.bidirectional,
        adapter_on=row.adapter,
    )


def check(world, prefix, rows, page_size=4, scatter=False):
    """Commit the prefixes, run the rows in one forward, compare each row with its dense form."""
    model = world[3]
    pool = make_pool(model, 1024, page_size)
    for slot in prefix:
        if scatter:
            pool.reserve(slot, page_size)
    for slot, prompt in prefix.items():
        commit_prompt(model, pool, slot, prompt)
    for slot in prefix:
        count = sum(len(r.tokens) for r in rows if r.request == slot)
        if count:
            assert pool.reserve(slot, len(prefix[slot]) + count)
            pool.begin(slot, count)
    if scatter:
        assert any(pool.run_start(slot) < 0 for slot in prefix), "nothing was scattered"
    step, logits = run_rows(model, pool, rows)
    for i in range(len(rows)):
        got = logits[step.read_start[i] : step.read_start[i + 1]]
        want = expected(world, prefix, rows, i)
        assert (got - want).abs().max() <= TOLERANCE, f"row {i}: {rows[i]}"


def draft(slot, seed, B, start, adapter=True):
    return Row(slot, [seed] + [MASK] * (B - 1), start, bidirectional=True, adapter=adapter)


def branch(slot, parent, parent_len, tokens, start, adapter=True):
    return Row(slot, tokens, start, parent, parent_len, bidirectional=True, adapter=adapter)


@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("B", [1, 2, 8, 32])
def test_draft_row(world, B, adapter):
    prompt = tokens_of(np.random.default_rng(B), 13)
    check(world, {0: prompt}, [draft(0, 7, B, 13, adapter)])


def test_adapter_and_direction_are_visible(world):
    """The other tests of this file could not fail if neither changed the logits."""
    config, tensors, adapter, _ = world
    prompt, own = tokens_of(np.random.default_rng(0), 9), [7] + [MASK] * 7

    def logits(bidirectional, on):
        return row_logits(
            config, tensors, adapter, prompt, [], own, bidirectional=bidirectional, adapter_on=on
        )

    base = logits(True, True)
    assert (base - logits(True, False)).abs().max() > 0.1
    assert (base - logits(False, True)).abs().max() > 0.1


@pytest.mark.parametrize("scatter", [False, True])
def test_verify_row_with_branches_of_both_kinds(world, scatter):
    rng = np.random.default_rng(3)
    prefix = {0: tokens_of(rng, 17), 1: tokens_of(rng, 5)}
    rows = []
    for slot, B in ((0, 8), (1, 4)):
        P, lead = len(prefix[slot]), len(rows)
        rows.append(Row(slot, tokens_of(rng, B), P, commit=True))
        for p in (1, B // 2):
            rows.append(branch(slot, lead, p, [9 + p] + [MASK] * (B - 1), P + p))
        rows.append(branch(slot, lead, B, [MASK] * B, P + B))
    check(world, prefix, rows, scatter=scatter)


def test_tidar_layout(world):
    rng = np.random.default_rng(4)
    prefix, B = {0: tokens_of(rng, 11)}, 6
    rows = [Row(0, tokens_of(rng, B), 11, commit=True)]
    rows += [branch(0, 0, i, [MASK] * B, 11 + i) for i in range(1, B + 1)]
    check(world, prefix, rows)


def test_first_draft_beside_the_last_prompt_chunk(world):
    """The prompt chunk is the parent; what it sees is already committed or in flight."""
    rng = np.random.default_rng(5)
    prefix = {0: tokens_of(rng, 10)}
    chunk = tokens_of(rng, 7)
    rows = [Row(0, chunk, 10, commit=True), branch(0, 0, 7, [MASK] * 16, 17)]
    check(world, prefix, rows)


def test_everything_at_once(world):
    """Prefill, AR, draft, verify and fused rows of eight requests, adapter on and off per row."""
    rng = np.random.default_rng(6)
    lengths = [3, 30, 8, 21, 1, 16, 40, 12]
    prefix = {i: tokens_of(rng, n) for i, n in enumerate(lengths)}
    rows = [
        Row(0, tokens_of(rng, 9), 3, commit=True),
        Row(1, [5], 30, commit=True),
        draft(2, 8, 16, 8),
        Row(3, tokens_of(rng, 8), 21, commit=True),
        branch(3, 3, 2, [9] + [MASK] * 7, 23),
        branch(3, 3, 8, [MASK] * 4, 29, adapter=False),
        draft(4, 3, 2, 1, adapter=False),
        Row(5, [77], 16, commit=True),
        draft(6, 1, 32, 40),
        Row(7, tokens_of(rng, 4), 12, commit=True),
        branch(7, 9, 1, [MASK] * 32, 13),
    ]
    check(world, prefix, rows)
    check(world, prefix, rows, page_size=16)


@pytest.mark.parametrize("n", [1, 3, 8, 16])
def test_uniform_batches_of_verify_and_draft_rows(world, n):
    """Equal widths and mixed directions take the strided path; out of slot order as well."""
    rng = np.random.default_rng(n)
    prefix = {i: tokens_of(rng, 5 + 3 * i) for i in range(5)}
    rows = []
    for slot in (3, 0, 4, 1, 2):
        P = len(prefix[slot])
        if slot % 2:
            rows.append(draft(slot, slot, n, P))
        else:
            rows.append(Row(slot, tokens_of(rng, n), P, commit=True))
    check(world, prefix, rows)


def test_random_row_lists(world):
    """Random mixtures of every row kind, with chunk, block and prefix lengths of all parities."""
    for seed in range(6):
        rng = np.random.default_rng(100 + seed)
        prefix = {i: tokens_of(rng, int(rng.integers(1, 34))) for i in range(4)}
        rows = []
        for slot in rng.permutation(4).tolist():
            P, n = len(prefix[slot]), int(rng.integers(1, 17))
            if rng.random() < 0.3:
                rows.append(draft(slot, 4, n, P, bool(rng.random() < 0.7)))
                continue
            lead = len(rows)
            rows.append(Row(slot, tokens_of(rng, n), P, commit=True))
            for _ in range(int(rng.integers(0, 4))):
                seen, B = int(rng.integers(1, n + 1)), int(rng.integers(1, 12))
                own = [MASK] * B
                if rng.random() < 0.5:
                    own[0] = int(rng.integers(0, VOCAB))
                rows.append(branch(slot, lead, seen, own, P + seen, bool(rng.random() < 0.7)))
        check(world, prefix, rows, page_size=int(rng.choice([1, 4, 16])))


def test_readout_of_the_last_token_only(world):
    config, tensors, _, model = world
    prompt = tokens_of(np.random.default_rng(8), 20)
    pool = make_pool(model, 64)
    pool.reserve(0, 40)
    pool.begin(0, 20)
    step, logits = run_rows(model, pool, [Row(0, prompt, 0, commit=True, readout=Readout.LAST)])
    want = row_logits(config, tensors, None, [], [], prompt, bidirectional=False, adapter_on=False)
    assert step.readout.tolist() == [19]
    assert (logits[0] - want[-1]).abs().max() <= TOLERANCE


def test_no_adapter_loaded_ignores_adapter_rows(tmp_path):
    config = published_config()
    model = load_model(str(write_checkpoint(tmp_path, config, adapter={})), max_positions=64)
    assert model.transformer.adapter is None
    world = (config, published_tensors(config), None, model)
    check(world, {0: [3, 4, 5]}, [draft(0, 7, 8, 3)])


def test_adapter_rows_at_the_head_middle_and_tail_of_a_forward(world):
    """Index bookkeeping of the masked delta, also behind the readout cut of the last layer."""
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        rng = np.random.default_rng(9)
        prefix = {i: tokens_of(rng, 6 + i) for i in range(3)}
        made = [
            draft(0, 3, 5, 6),
            Row(1, tokens_of(rng, 9), 7, commit=True),
            Row(2, tokens_of(rng, 2), 8, commit=True),
        ]
        check(world, prefix, [made[i] for i in order])


def test_bfloat16_stays_close_to_float32(tmp_path):
    """The same code in bf16: not equal, but the same model."""
    config = published_config()
    folder = write_checkpoint(tmp_path, config)
    prompt = tokens_of(np.random.default_rng(1), 24)
    logits = {}
    for dtype in ("float32", "bfloat16"):
        model = load_model(str(folder), dtype=dtype, max_positions=64)
        logits[dtype] = commit_prompt(model, make_pool(model, 64), 0, prompt)
    error = (logits["bfloat16"] - logits["float32"]).abs().mean()
    assert 0 < error < 0.1 * logits["float32"].std()
    assert torch.isfinite(logits["bfloat16"]).all()
