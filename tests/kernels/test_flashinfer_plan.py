"""What we hand to FlashInfer: sequences, pages and spans against the row rule. No FlashInfer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recguide_core.engine.rows import pack
from recguide_core.kernels.attention_torch import PackedLayout, in_flight_mask
from recguide_core.kernels.flashinfer_ranges import ranges_plan, why_not
from recguide_core.kvcache import KVPool
from recguide_core.records import Row, Rows


def forward(rows: list[Row], prefix: list[int], page: int) -> tuple[PackedLayout, KVPool]:
    pool = KVPool(layers=1, kv_heads=1, head_dim=8, tokens=256, page_size=page,
                  device=torch.device("cpu"), dtype=torch.float32)  # fmt: skip
    for r, P in enumerate(prefix):
        pool.reserve(r, P + 9)
    step = pack(Rows.of(rows), np.array(prefix))
    return PackedLayout(step.slots, step.offset, step.prefix, step.vis), pool


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("length", [1, 2, 8])
def test_plan_describes_the_rows(page: int, length: int) -> None:
    """The mask that FlashInfer derives from the plan equals ours, and K/V lie where it reads."""
    prefix = [0, 17, 31]
    rows = [
        Row(0, np.zeros(length), 0, commit=True),
        Row(1, np.zeros(length), 17, bidirectional=True, adapter=True),
        Row(2, np.zeros(3), 31, commit=True),
    ]
    layout, pool = forward(rows, prefix, page)
    assert why_not(layout) is None
    plan = ranges_plan(layout, pool)
    for r, P in enumerate(prefix):
        lo, hi = plan.qo_indptr[r], plan.qo_indptr[r + 1]
        pages = plan.kv_indices[plan.kv_indptr[r] : plan.kv_indptr[r + 1]]
        keys = (len(pages) - 1) * page + plan.last_page_len[r]
        n = hi - lo
        assert keys == P + n
        assert pages.tolist() == pool.page_list(r)[: len(pages)]
        position = np.arange(keys)
        at = pages[position // page] * page + position % page
        assert at[P:].tolist() == plan.slots[lo:hi].tolist()
        causal = position[None, :] <= P + np.arange(n)[:, None]
        start, end = plan.ranges[lo:hi, :1], plan.ranges[lo:hi, 1:]
        derived = causal | ((position >= start) & (position <= end))
        ours = np.ones((n, keys), bool)
        ours[:, P:] = in_flight_mask(layout.vis[lo:hi], lo, n)
        assert (derived == ours).all()


def test_branches_are_refused() -> None:
    rows = [Row(0, np.zeros(4), 5, commit=True), Row(0, np.zeros(4), 7, 0, 2, bidirectional=True)]
    layout, _ = forward(rows, [5], 16)
    assert why_not(layout) == "a row sees a parent row"
    rows[1].parent, rows[1].parent_len = -1, 0
    layout, _ = forward(rows, [5], 16)
    assert why_not(layout) == "a request has several rows"
