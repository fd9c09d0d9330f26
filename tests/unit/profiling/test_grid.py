"""Which forwards are timed, and the rows that stand for them."""

import numpy as np
import pytest

from recguide_core.engine.row_checks import check_rows
from recguide_core.engine.rows import pack, shape_of
from recguide_core.errors import UsageError
from recguide_core.profiling.grid import Point, default_grid
from recguide_core.profiling.measure import rows_of
from recguide_core.profiling.run import columns_of
from recguide_core.records import Row, Rows

POINTS = default_grid((1, 3), (4, 16), (64, 256))


def step_of(point: Point):
    rows: list[Row] = []
    for slot, context in enumerate(point.contexts.tolist()):
        rows += rows_of(point, slot, context, mask_id=3, first_row=len(rows))
    packed = Rows.of(rows)
    check_rows(packed)
    return pack(packed, point.contexts)


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_rows_have_the_shape_that_the_table_will_name(point):
    shape = shape_of(step_of(point))
    columns = columns_of([point], [[1.0, 3.0]])
    assert shape.kind == columns["kind"][0] == point.kind
    for name in ("requests", "query_tokens", "kv_tokens", "branches"):
        assert getattr(shape, name) == columns[name][0], name
    if point.kind != "prefill":
        assert shape.block_size == columns["block_size"][0]


def test_points_are_unique_and_start_with_the_serial_forwards():
    assert len(set(POINTS)) == len(POINTS)
    kinds = [point.kind for point in POINTS]
    assert kinds.index("fused") > kinds.index("verify") > kinds.index("ar")
    assert {p.context for p in POINTS[: kinds.index("prefill")]} == {64}


def test_prefixes_of_a_forward_are_of_many_lengths():
    """Equal ones would be timed in the padded attention that serving seldom meets."""
    for requests in (2, 3, 32):
        contexts = Point("verify", requests, 8, 128).contexts
        assert contexts.sum() == 128 * requests
        assert (contexts.min(), contexts.max()) == (64, 192)
        assert len(set(contexts.tolist())) == requests
    assert not np.array_equal(contexts, np.sort(contexts))
    assert Point("ar", 1, 1, 128).contexts.tolist() == [128]


def test_a_mixed_forward_drafts_and_verifies():
    (point,) = (p for p in POINTS if (p.kind, p.block, p.context) == ("mixed", 16, 256))
    drafts = step_of(point).rows.bidirectional
    assert drafts.tolist() == [True, False, True]
    assert all(p.requests > 1 for p in POINTS if p.kind == "mixed")


def test_statistics_of_a_point():
    columns = columns_of([Point("ar", 1, 1, 8)], [[1.0, 3.0]])
    assert (columns["mean_ms"], columns["std_ms"], columns["count"]) == ([2.0], [1.0], [2])


@pytest.mark.parametrize("grid", [((), (4,), (8,)), ((1,), (33,), (8,)), ((1,), (4,), (0,))])
def test_impossible_grids(grid):
    with pytest.raises(UsageError):
        default_grid(*grid)
