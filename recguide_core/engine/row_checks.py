"""The invariants of rows, which everything behind them relies on. No torch."""

from __future__ import annotations

import numpy as np

from recguide_core.records import Rows


def check_rows(rows: Rows) -> None:
    """Assert the invariants of the row rule (architecture, part 1)."""
    child = rows.parent >= 0
    parent = rows.parent[child]
    assert (rows.length > 0).all()
    assert not rows.bidirectional[parent].any(), "a parent is causal"
    assert (rows.request[parent] == rows.request[child]).all(), "a parent is of the same request"
    assert (rows.parent[parent] < 0).all(), "parents have depth 1"
    assert (rows.parent_len[child] >= 1).all()
    assert (rows.parent_len[child] <= rows.length[parent]).all()
    assert (rows.parent_len[~child] == 0).all()
    assert not (rows.bidirectional & rows.commit).any(), "bidirectional rows never commit"
    assert not (child & rows.commit).any(), "commit rows have no parent"
    changes = np.flatnonzero(np.diff(rows.request)) + 1
    groups = np.concatenate((rows.request[:1], rows.request[changes]))
    assert len(set(groups.tolist())) == len(groups), "rows of a request are adjacent"
    commits = np.flatnonzero(rows.commit)
    leads = np.concatenate(([0], changes))
    assert np.isin(commits, leads).all(), "the commit row of a request comes first"
