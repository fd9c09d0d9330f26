"""Page ownership under random use, and the two ways of reading pages giving the same attention."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recguide_core.engine.scheduler import Live, Scheduler
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import UsageError
from recguide_core.kernels.attention_torch import (
    UNIFORM_MAX_PADDING,
    UNIFORM_MAX_TOKENS,
    PackedLayout,
    TorchAttention,
)
from recguide_core.kvcache import KVPool
from recguide_core.pages import PageTable
from recguide_core.records import Act, BranchKind, Plan, Request, RequestTable


class Pages(RuleBasedStateMachine):
    """A model of the pool: who holds how much; positions keep their slot for ever."""

    @initialize(pages=st.integers(1, 24), size=st.sampled_from([1, 3, 16]))
    def start(self, pages, size):
        self.table = PageTable(pages, size)
        self.held: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.flying: dict[int, int] = {}
        self.slots: dict[int, list[int]] = {}

    @rule(request=st.integers(0, 5), tokens=st.integers(1, 120), expected=st.integers(0, 300))
    def reserve(self, request, tokens, expected):
        size = self.table.page_size
        have = self.held.get(request, 0)
        need = max(0, -(-tokens // size) - have)
        free = self.table.pages - sum(self.held.values())
        got = self.table.reserve(request, tokens, expected)
        assert got == (need <= free), "granted exactly when the pages are there"
        if got and have + need:
            self.held[request] = have + need
            self.done.setdefault(request, 0)
            now = self.table.slots(request, 0, self.table.capacity(request)).tolist()
            before = self.slots.get(request, [])
            assert now[: len(before)] == before, "growth moves nothing"
            self.slots[request] = now

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fly(self, data):
        request = data.draw(st.sampled_from(sorted(self.held)))
        room = self.table.capacity(request) - self.done[request]
        self.flying[request] = data.draw(st.integers(0, room))
        self.table.begin(request, self.flying[request])

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def land(self, data):
        request = data.draw(st.sampled_from(sorted(self.flying)))
        count = data.draw(st.integers(0, self.flying.pop(request)))
        self.table.commit(request, count)
        self.done[request] += count
        assert self.table.committed(request) == self.done[request]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        request = data.draw(st.sampled_from(sorted(self.held)))
        self.table.release(request)
        for book in (self.held, self.done, self.flying, self.slots):
            book.pop(request, None)

    @rule(request=st.integers(6, 9))
    def release_of_nobody_is_nothing(self, request):
        self.table.release(request)

    @invariant()
    def everything_is_owned_once(self):
        if not hasattr(self, "table"):
            return
        flying = any(self.flying.values())
        self.table.check_integrity(idle=not flying)
        if flying:
            with pytest.raises(AssertionError):
                self.table.check_integrity()
        every = [s for slots in self.slots.values() for s in slots]
        assert len(every) == len(set(every))
        assert self.table.free_pages == self.table.pages - sum(self.held.values())
        for request, slots in self.slots.items():
            start = self.table.run_start(request)
            adjacent = slots == list(range(slots[0], slots[0] + len(slots)))
            assert (start == slots[0]) if adjacent else (start == -1)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_integrity_notices_each_kind_of_damage():
    def spoiled(damage) -> PageTable:
        table = PageTable(8, 4)
        table.reserve(0, 8)
        table.reserve(1, 8)
        table.check_integrity()
        damage(table)
        return table

    def steal(table):
        table._held[1].pages[0] = table._held[0].pages[0]

    def lose(table):
        table.free_pages -= 1

    def forget(table):
        del table._held[0]

    def overrun(table):
        table._held[0].committed = 9

    def fly(table):
        table._held[0].in_flight = 1

    for damage in (steal, lose, forget, overrun, fly):
        with pytest.raises(AssertionError):
            spoiled(damage).check_integrity()


def test_growth_stays_adjacent_while_the_neighbourhood_is_kept_free():
    table = PageTable(32, 4)
    for request in (0, 1, 2):
        assert table.reserve(request, 4, expected=32)
    for tokens in range(8, 33, 4):
        for request in (0, 1, 2):
            assert table.reserve(request, tokens)
    assert all(table.run_start(r) == 32 * r for r in (0, 1, 2))


def test_a_pool_smaller_than_a_page_is_refused():
    with pytest.raises(UsageError, match="kv-tokens"):
        KVPool(
            layers=1,
            kv_heads=1,
            head_dim=2,
            tokens=3,
            page_size=4,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )


# -- attention over pages -------------------------------------------------------------------

HEADS, KV_HEADS, DIM = 4, 2, 8


def make_pool(tokens: int, page_size: int) -> KVPool:
    pool = KVPool(
        layers=1,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        tokens=tokens,
        page_size=page_size,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    # Whatever nobody committed must not matter.
    pool.k[0].fill_(1e9)
    pool.v[0].fill_(-1e9)
    return pool


def brute_force(prefix_k, prefix_v, q, k, v, vis, first):
    """One request, token by token, head by head, in float64."""
    n = len(q)
    out = torch.zeros(n, HEADS, DIM, dtype=torch.float64)
    for t in range(n):
        a0, a1, b0, b1 = (int(x) - first for x in vis[t])
        rows = [*range(a0, a1), *range(b0, b1)]
        keys = torch.cat((prefix_k, k[rows])).double()
        values = torch.cat((prefix_v, v[rows])).double()
        for h in range(HEADS):
            g = h // (HEADS // KV_HEADS)
            share = (keys[:, g] @ q[t, h].double() / DIM**0.5).softmax(0)
            out[t, h] = share @ values[:, g]
    return out.view(n, HEADS * DIM)


def run_case(lengths, counts, page_size, *, scatter, order, interval, seed):
    """Commit prefixes, attend once; (result, oracle, which path was taken)."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    pool = make_pool(page_size * 200, page_size)
    prefix = {}
    if scatter:
        for r in order:
            pool.reserve(r, 1)
    for r in order:
        assert pool.reserve(r, lengths[r] + counts[r], interval)
        prefix[r] = [torch.randn(lengths[r], KV_HEADS, DIM, generator=generator) for _ in "kv"]
        slots = torch.from_numpy(pool.slots(r, 0, lengths[r]))
        pool.k[0][slots], pool.v[0][slots] = prefix[r]
    total = sum(counts)
    q = torch.randn(total, HEADS, DIM, generator=generator)
    k, v = (torch.randn(total, KV_HEADS, DIM, generator=generator) for _ in "kv")
    offset = np.concatenate(([0], np.cumsum(counts)))
    vis = np.zeros((total, 4), np.int64)
    for i, n in enumerate(counts):
        first = offset[i]
        for t in range(n):
            low = int(rng.integers(0, t + 1))
            parent = int(rng.integers(0, low + 1))
            vis[first + t] = first + np.array([low, int(rng.integers(t + 1, n + 1)), 0, parent])
    requests = np.arange(len(counts))
    layout = PackedLayout(requests, offset, np.array(lengths), vis)
    attention = TorchAttention(pool, layout, HEADS // KV_HEADS)
    got = attention.attend(0, q, k, v)
    want = torch.cat(
        [
            brute_force(
                *prefix[i],
                q[offset[i] : offset[i + 1]],
                k[offset[i] : offset[i + 1]],
                v[offset[i] : offset[i + 1]],
                vis[offset[i] : offset[i + 1]],
                offset[i],
            )
            for i in range(len(counts))
        ]
    )
    return got, want, attention


@st.composite
def attention_cases(draw):
    n = draw(st.integers(1, 4))
    same = draw(st.booleans())
    count = draw(st.integers(1, 9))
    return {
        "lengths": [draw(st.integers(0, 30)) for _ in range(n)],
        "counts": [count if same else draw(st.integers(1, 9)) for _ in range(n)],
        "page_size": draw(st.sampled_from([1, 4, 16])),
        "scatter": draw(st.booleans()),
        "order": draw(st.permutations(range(n))),
        "interval": draw(st.sampled_from([0, 64])),
        "seed": draw(st.integers(0, 10**6)),
    }


@given(attention_cases())
@settings(max_examples=80, deadline=None)
def test_attention_equals_brute_force_whatever_the_pages(case):
    got, want, _ = run_case(**case)
    assert (got.double() - want).abs().max() < 1e-5


def test_each_path_is_taken_and_they_agree():
    base = {
        "lengths": [9, 14, 12],
        "counts": [4, 4, 4],
        "page_size": 4,
        "order": (0, 1, 2),
        "seed": 1,
    }
    uniform, want, taken = run_case(**base, scatter=False, interval=64)
    assert taken._uniform is not None
    assert taken._uniform.order is None
    single, _, taken = run_case(**base, scatter=False, interval=0)
    assert taken._uniform is None
    gathered, _, taken = run_case(**base, scatter=True, interval=0)
    assert taken._uniform is None
    assert any(isinstance(one.keys, torch.Tensor) for one in taken._singles)
    base["order"] = (2, 0, 1)
    shuffled, other, taken = run_case(**base, scatter=False, interval=64)
    assert taken._uniform is not None
    assert taken._uniform.order is not None
    assert (shuffled.double() - other).abs().max() < 1e-5
    for got in (uniform, single, gathered):
        assert (got.double() - want).abs().max() < 1e-5


def test_wide_blocks_leave_the_uniform_path():
    wide = UNIFORM_MAX_TOKENS + 1
    _, _, taken = run_case(
        [4, 4], [wide, wide], 4, scatter=False, order=(0, 1), interval=64, seed=0
    )
    assert taken._uniform is None


def test_much_padding_leaves_the_uniform_path():
    """Two requests of 4 tokens; padded keys / own keys at the limit and a key above it."""
    for longest, uniform in ((46, True), (47, False)):
        _, _, taken = run_case(
            [16, longest - 4], [4, 4], 4, scatter=False, order=(0, 1), interval=64, seed=0
        )
        padding = 2 * longest / (20 + longest)
        assert (taken._uniform is not None) == uniform == (padding <= UNIFORM_MAX_PADDING)


def test_the_uniform_path_never_reads_past_the_pool():
    """The last run lies at the pool's end and is shorter than the longest."""
    pool = make_pool(112, 4)
    for request, tokens in ((0, 40), (1, 24)):
        assert pool.reserve(request, tokens, 88 if request == 0 else 0)
    counts, prefix = np.array([4, 4]), np.array([36, 20])
    vis = np.array([[i // 4 * 4, i + 1, 0, 0] for i in range(8)])
    vis[4:, 2:] = 4
    layout = PackedLayout(np.arange(2), np.array([0, 4, 8]), prefix, vis)
    taken = TorchAttention(pool, layout, 2)
    out = taken.attend(
        0, torch.randn(8, HEADS, DIM), torch.randn(8, KV_HEADS, DIM), torch.randn(8, KV_HEADS, DIM)
    )
    assert out.shape == (8, HEADS * DIM)
    assert counts.sum() == 8


def test_what_a_neighbour_holds_does_not_leak_in():
    """The padded call reads beyond a short run; NaN in another request's pages must stay there."""
    generator = torch.Generator().manual_seed(0)
    pool = make_pool(256, 4)
    pool.k[0].zero_()
    pool.v[0].zero_()
    for request, tokens in ((0, 12), (9, 12), (1, 24), (2, 12)):
        assert pool.reserve(request, tokens)
    layout = PackedLayout(
        np.array([0, 1, 2]), np.array([0, 4, 8, 12]), np.array([8, 14, 8]), np.zeros((12, 4))
    )
    layout.vis = np.array([[i // 4 * 4, i + 1, i // 4 * 4, i // 4 * 4] for i in range(12)])
    q = torch.randn(12, HEADS, DIM, generator=generator)
    k, v = (torch.randn(12, KV_HEADS, DIM, generator=generator) for _ in "kv")
    clean = TorchAttention(pool, layout, 2).attend(0, q, k, v)
    foreign = torch.from_numpy(pool.slots(9, 0, 12))
    pool.k[0][foreign] = pool.v[0][foreign] = float("nan")
    assert torch.allclose(TorchAttention(pool, layout, 2).attend(0, q, k, v), clean, atol=1e-6)


@pytest.mark.parametrize("scattered", [False, True])
def test_pages_come_back_wiped(scattered):
    pool = make_pool(64, 4)
    pool.k[0].zero_()
    pool.v[0].zero_()
    pool.reserve(0, 4)
    if scattered:
        pool.reserve(1, 4)
    pool.reserve(0, 16)
    assert (pool.run_start(0) < 0) == scattered
    slots = torch.from_numpy(pool.slots(0, 0, 14))
    pool.begin(0, 14)
    pool.k[0][slots] = pool.v[0][slots] = float("nan")
    pool.commit(0, 2)
    pool.release(0)
    assert pool.k[0].isfinite().all()
    assert pool.v[0].isfinite().all()


def two_decoding(blocks: list[int], branch: int = 0):
    """An old and a young request of 7 committed tokens, 2 of 8 pages each; their fitted plan."""
    table, pages = RequestTable.sized(2), PageTable(8, 4)
    scheduler = Scheduler(EngineSettings(max_requests=2), table, pages, 100)
    for key in ("old", "young"):
        prompt = np.arange(1, 8)
        scheduler.add(Live(Request(key, prompt, 50), prompt))
    lives = scheduler.admit()
    for live in lives:
        pages.begin(live.slot, 7)
        pages.commit(live.slot, 7)
        live.prefilled = 7
        table.committed[live.slot] = 7
        table.has_draft[live.slot] = table.decoding[live.slot] = True
    plan = Plan.empty(np.array([live.slot for live in lives]), 1)
    plan.act[:], plan.block[:] = Act.VERIFY, blocks
    if branch:
        plan.branch_kind[:], plan.branch_block[:] = BranchKind.CONTINUATION, branch
    fitted = scheduler.fit(plan)
    pages.check_integrity()
    return fitted, scheduler


def test_short_pages_cost_branches_first_then_width_then_the_youngest_its_place():
    plan, _ = two_decoding([8, 8], branch=16)
    assert plan.block.tolist() == [8, 8]
    assert plan.branch_kind.tolist() == [[-1], [-1]]
    plan, scheduler = two_decoding([13, 16])
    assert plan.block.tolist() == [13, 5], "one page beside its own two is left"
    assert scheduler.preemptions == 0
    plan, scheduler = two_decoding([25, 8])
    assert plan.block.tolist() == [25]
    assert scheduler.preemptions == 1
    assert [live.request.key for live in scheduler.waiting] == ["young"]
