"""Attention, its device planner and its merge in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from cases import MODES, Case, build, relative_error, requests_strategy
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.kernels import attention_reference, tiles
from recguide_core.kernels.launch import ATTENTION_CONFIGS, SHAPES, AttentionConfig
from recguide_core.kernels.ops import Geometry, PageTable
from recguide_core.kernels.ops_triton import TritonRoundOps

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}
FIXED = settings(deadline=None, derandomize=True, database=None)


def run(
    case: Case,
    block_m: int = 32,
    block_n: int = 16,
    multiprocessors: int = 16,
    fixed_range: int = 0,
    exact: bool = True,
) -> torch.Tensor:
    """The whole chain: device planner, tiles, merge; NaN in every buffer beforehand."""
    T, H, D = case.q.shape
    N, R = case.k_new.shape[1], len(case.prefix)
    ops = TritonRoundOps(
        Geometry(H, N, D, 100, case.page, 0, (1,)), T, R, "cpu", multiprocessors,
        config=AttentionConfig(block_m, block_n, 4, 2), exact=exact, fixed_range=fixed_range,
        max_context=max(case.prefix) + 1,
    )  # fmt: skip
    ops.scratch.part.fill_(float("nan"))
    ops.scratch.part_lse.fill_(float("nan"))
    out = torch.full((T, H, D), float("nan"), dtype=case.q.dtype)
    q_ptr = torch.tensor(case.q_ptr, dtype=torch.int32)
    ops.prepare(q_ptr, torch.tensor(case.prefix, dtype=torch.int32))
    table = PageTable(case.pages, case.page_ptr, case.page)
    ops.attend_rows(case.q, case.k_new, case.v_new, case.vis, table, case.k_pool, case.v_pool, out)
    return out


def check(case: Case, **options: int | bool) -> None:
    error = relative_error(run(case, **options), case.dense())
    assert error < TOLERANCE[case.q.dtype], error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page", [1, 16])
def test_every_mode(mode: str, page: int) -> None:
    B = 3 if mode == "tidar" else 8
    check(build([(mode, 37, B, (2, 5, 8)), (mode, 0, B, (1,))], page=page))


@given(
    requests_strategy(),
    st.sampled_from([1, 16]),
    st.sampled_from([(16, 16), (32, 16), (64, 32)]),
    st.sampled_from([1, 8, 66]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 99),
)
@settings(FIXED, max_examples=40)
def test_drawn_rows(requests, page, block, multiprocessors, dtype, seed) -> None:
    case = build(requests, page=page, dtype=dtype, seed=seed)
    check(case, block_m=block[0], block_n=block[1], multiprocessors=multiprocessors)


def test_twin_equals_the_dense_rule() -> None:
    case = build([("overlap", 33, 8, (3, 8)), ("tidar", 5, 3, ()), ("first", 0, 4, ())], page=1)
    twin = attention_reference.attend(
        case.q, case.k_new, case.v_new, case.k_pool, case.v_pool, case.pages, case.page_ptr,
        case.q_ptr, case.prefix, case.vis, case.page,
    )  # fmt: skip
    assert relative_error(twin, case.dense()) < 1e-12


def test_dead_key_block() -> None:
    """P = 0 and 32 keys before a row that sees none of them: -inf - -inf is NaN."""
    check(build([("loose", 0, 32, ())]), block_m=128, block_n=16)


@pytest.mark.parametrize("config", ATTENTION_CONFIGS, ids=lambda c: c.name)
@pytest.mark.parametrize(("D", "group"), SHAPES)
def test_shipped_tiles_and_shapes(config: AttentionConfig, D: int, group: int) -> None:
    case = build([("overlap", 100, 16, (4, 16)), ("ar", 3, 1, ())], D=D, group=group, kv_heads=2)
    check(case, block_m=config.block_m, block_n=config.block_n, multiprocessors=132)


def test_fp16_uses_the_compiled_arithmetic() -> None:
    """EXACT = False is the code path that is compiled for a GPU; fp16 dots work here."""
    check(build([("overlap", 40, 8, (3, 8))], dtype=torch.float16), exact=False)


def test_fixed_range_does_not_depend_on_the_batch() -> None:
    """A request's result is bit-equal alone and beside others when the range is pinned."""
    one = ("verify", 60, 8, ())
    alone = run(build([one]), fixed_range=16)
    case = build([one, ("overlap", 33, 8, (2,))])
    solo = build([one])
    # Same numbers for the first request in both batches.
    for name in ("q", "k_new", "v_new"):
        getattr(case, name)[:8] = getattr(solo, name)
    for j in range(60):
        a = int(case.pages[j // 16]) * 16 + j % 16
        b = int(solo.pages[j // 16]) * 16 + j % 16
        case.k_pool[a], case.v_pool[a] = solo.k_pool[b], solo.v_pool[b]
    assert torch.equal(run(case, fixed_range=16)[:8], alone)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 500)), min_size=1, max_size=9),
    st.sampled_from([(16, 16), (64, 64)]),
    st.sampled_from([1, 7, 132]),
    st.sampled_from([0, 64]),
)
@settings(FIXED, max_examples=30)
def test_device_planner_equals_the_host_planner(requests, block, multiprocessors, pinned) -> None:
    lengths = [n for n, _ in requests]
    prefix = [p for _, p in requests]
    q_ptr = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    ops = TritonRoundOps(
        Geometry(4, 2, 64, 100, 16, 0, (1,)), max(1, sum(lengths)), len(prefix), "cpu",
        multiprocessors, config=AttentionConfig(*block, 4, 2), exact=True, fixed_range=pinned,
        max_context=501,
    )  # fmt: skip
    work = ops.work
    work.items.fill_(-9)
    work.groups.fill_(-9)
    ops.prepare(torch.tensor(q_ptr, dtype=torch.int32), torch.tensor(prefix, dtype=torch.int32))
    items, groups = tiles.plan(q_ptr, prefix, 2, *block, 2, ops.slots, pinned)
    n, g = int(work.n_items), int(work.n_groups)
    assert work.items[:n].tolist() == items
    assert work.groups[:g, :5].tolist() == [one[:5] for one in groups]
    assert (work.items[n:] == -9).all() and (work.groups[g:] == -9).all()
    assert sum(one[1] for one in groups) <= ops.capacity.partials
