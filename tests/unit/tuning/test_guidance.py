"""Reading rho, pins and expected overlap between tuned loads; what planners make of them."""

import numpy as np
import pytest

from recguide_core.engine.guidance import Guidance
from recguide_core.engine.planners_recguide import RecGuidePlanner
from recguide_core.policy.cost import Milliseconds, Shapes
from recguide_core.policy.value import ANY, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK, RequestTable

MENU = (1, 4, 16)


class PerToken:
    def ms(self, shapes: Shapes) -> Milliseconds:
        return 10.0 + 0.01 * shapes.query_tokens.astype(np.float64)


def flat_table(accepted: dict[int, int]) -> ValueTable:
    """V is the same whatever the history."""
    survival = np.zeros((2, len(accepted), MAX_BLOCK))
    for j, length in enumerate(accepted.values()):
        survival[:, j, :length] = 1.0
    weight, rounds = np.ones((2, len(accepted))), np.ones((2, len(accepted)), np.int64)
    strata = [
        Stratum(ANY, False, lagged, np.empty(0), survival, weight, rounds)
        for lagged in (False, True)
    ]
    return ValueTable(list(accepted), strata)


def guidance(**changes: object) -> Guidance:
    table = flat_table({1: 1, 4: 3, 16: 5})
    return Guidance(table, PerToken(), {1: 0.1, 100: 0.3}, menu=MENU, **changes)  # type: ignore[arg-type]


def blocks(plan: Guidance, load: int) -> list[int]:
    table = RequestTable.sized(2)
    table.live[:] = table.decoding[:] = True
    table.remaining[:], table.room[:] = 100, 100
    planner = RecGuidePlanner(plan)
    return planner.plan(table, np.array([0, 1]), load).block.tolist()


def test_rho_is_read_on_a_log_scale_and_held_outside() -> None:
    assert guidance().rho_at(10) == pytest.approx(0.2)
    assert guidance().rho_at(1) == pytest.approx(0.1)
    assert guidance().rho_at(4000) == pytest.approx(0.3)


def test_the_rate_is_read_like_rho_and_is_rho_where_none_was_recorded() -> None:
    known = guidance(rate={1: 0.4, 100: 0.2})
    assert known.rate_at(10) == pytest.approx(0.3)
    assert guidance().rate_at(10) == guidance().rho_at(10)


def test_rho_far_beyond_its_rate_is_not_believed() -> None:
    assert RecGuidePlanner(guidance(rate={1: 0.05, 100: 0.05}))._rho(1) == pytest.approx(0.075)
    assert RecGuidePlanner(guidance(rate={1: 0.09, 100: 0.3}))._rho(1) == pytest.approx(0.1)
    assert RecGuidePlanner(guidance())._rho(1) == pytest.approx(0.1)


def test_expected_overlap_is_read_between_loads() -> None:
    plan = guidance(overlap={1: {4: (0.6, 2.0), 16: (0.4, 1.0)}, 100: {4: (0.0, 0.0)}})
    reuse, rows = plan.overlap_at(10)
    assert reuse == pytest.approx([0, 0.3, 0.2])
    assert rows == pytest.approx([0, 1.0, 0.5])
    assert plan.overlap_at(1)[0] == pytest.approx([0, 0.6, 0.4])


def test_expected_overlap_makes_a_block_cheaper() -> None:
    # Serial rounds: V - rho T = 1 - 7, which counts for sqrt(3) rounds, against 3 - 14 (of which
    # the leading block, here B = 4, has a tenth of its value back).
    rho = {1: 0.7, 100: 0.7}
    table = flat_table({1: 1, 4: 3, 16: 3})
    serial = Guidance(table, PerToken(), rho, menu=MENU)
    assert blocks(serial, 1) == [1, 1]
    overlapped = Guidance(table, PerToken(), rho, menu=MENU, overlap={1: {4: (0.9, 0.0)}})
    assert blocks(overlapped, 1) == [4, 4]
