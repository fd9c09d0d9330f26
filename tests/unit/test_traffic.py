"""What RecGuide learns from its own rounds: scale, rate and lead, against plain arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from recguide_core.policy import traffic as module
from recguide_core.policy.traffic import DOUBT, HEAD_START, Traffic
from recguide_core.records import Act, Plan, RequestTable

MENU = np.array([1, 4, 8, 16, 32])
TYPICAL = np.array([1.0, 3.5, 6.0, 9.0, 12.0])
VALUES = np.array([1.0, 3.0, 5.0, 10.0, 14.0])


class Life:
    """`n` requests that always verify one block, and what the traffic makes of them."""

    def __init__(self, n: int = 4, rate: float = 0.5) -> None:
        self.table = RequestTable.sized(n)
        self.table.remaining[:] = 10_000
        self.who = np.arange(n)
        self.traffic = Traffic(MENU, TYPICAL, lambda load: rate, n)

    def round(
        self, block: int, accepted: int, ms: float, load: int = 4, promised: object = VALUES
    ) -> None:
        """Everybody drafts `block` by V = `promised` [menu], verifies it and gets `accepted`; the
        two forwards take `ms`.
        """
        n = len(self.who)
        if block > 1:
            self.traffic.settle(self.table)
            self.traffic.promise(self.who, np.tile(promised, (n, 1)), np.full(n, block))
            self.step(Act.DRAFT, block, ms / 2, load)
            self.table.has_draft[:] = True
        self.step(Act.VERIFY, block, ms / 2 if block > 1 else ms, load)
        self.table.committed[:] += accepted
        self.table.rounds[:] += 1
        self.table.has_draft[:] = False

    def step(self, act: Act, block: int, ms: float, load: int) -> None:
        self.traffic.settle(self.table)
        plan = Plan.empty(self.who)
        plan.act[:], plan.block[:] = act, block
        self.traffic.begin(plan, self.table, load, ms)


def test_scale_is_accepted_over_promised_for_each_block() -> None:
    life = Life()
    for _ in range(400):
        life.round(16, 6, 10.0)
        life.round(4, 4, 10.0)
    assert life.traffic.scale[3] == pytest.approx(6 / 10, rel=0.02)
    assert life.traffic.scale[1] == pytest.approx(4 / 3, rel=0.02)
    assert life.traffic.scale[[0, 2, 4]].tolist() == [1.0, 1.0, 1.0]


def test_scale_after_few_rounds_is_the_weighted_mean_with_the_table() -> None:
    life = Life(n=1)
    life.round(8, 2, 10.0)
    life.round(8, 7, 10.0)
    life.traffic.settle(life.table)
    kept = 0.997
    accepted, promised = 2 * kept + 7, 5 * kept + 5
    prior = 2 * TYPICAL[2]
    assert life.traffic.scale[2] == pytest.approx((prior + accepted) / (prior + promised))


def test_plain_ar_and_cut_blocks_promise_nothing() -> None:
    life = Life()
    life.round(1, 1, 5.0)
    life.traffic.promise(life.who, np.tile(VALUES, (4, 1)), np.full(4, 16))
    life.step(Act.VERIFY, 11, 5.0, 4)
    life.table.committed[:] += 2
    life.table.rounds[:] += 1
    life.traffic.settle(life.table)
    assert (life.traffic.scale == 1.0).all()


def test_the_factor_follows_the_rate_that_is_attained() -> None:
    life = Life(rate=0.5)
    for _ in range(200):
        life.round(8, 5, 10.0)
    assert life.traffic.factor(4) == pytest.approx(1.0, rel=0.03)
    for _ in range(200):
        life.round(8, 8, 10.0)
    assert life.traffic.factor(4) == pytest.approx(1.6, rel=0.03)


def test_loads_far_apart_have_a_rate_each() -> None:
    life = Life()
    for _ in range(250):
        life.round(8, 8, 4.0, load=32)
    assert life.traffic.factor(32) == pytest.approx(4.0, rel=0.05)
    assert life.traffic.factor(40) == life.traffic.factor(33)
    assert life.traffic.factor(1) == 1.0


def test_a_last_round_counts_as_promised_and_the_slot_starts_anew() -> None:
    life = Life(n=1, rate=1.0)
    table, traffic = life.table, life.traffic
    table.rounds[0], table.committed[0], table.remaining[0] = 7, 300, 6
    traffic.promise(life.who, VALUES[None], np.array([16]))
    life.step(Act.VERIFY, 16, 10.0, 1)
    before = traffic._seen(1).tokens * module._STEP
    table.reset(0)
    traffic.settle(table)
    assert traffic._seen(1).tokens - before == pytest.approx(6.0)
    assert (traffic.scale == 1.0).all()
    # A new request in the slot is not the round's outcome.
    life.step(Act.DRAFT, 4, 10.0, 1)
    table.committed[0] = 50
    before = traffic._seen(1).tokens
    traffic.settle(table)
    assert traffic._seen(1).tokens == pytest.approx(before * module._STEP)


def test_rows_that_waited_are_no_news() -> None:
    life = Life()
    life.round(8, 3, 10.0)
    life.traffic.settle(life.table)
    scale, tokens = life.traffic.scale.copy(), life.traffic._seen(4).tokens
    life.step(Act.VERIFY, 8, 10.0, 4)
    life.traffic.settle(life.table)
    assert (life.traffic.scale == scale).all()
    assert life.traffic._seen(4).tokens == tokens


def test_the_lead_is_the_best_mean_rate_and_its_price_falls_by_a_share_of_its_value() -> None:
    life = Life()
    prices = np.array([4.0, 9.0, 10.0, 14.0, 30.0])
    lead, less = life.traffic.favour(np.tile(VALUES, (4, 1)), prices, 0.7, 4)
    assert lead == 3
    assert 0.7 * less == pytest.approx(HEAD_START * VALUES[3])
    # More where V says little about a round.
    life.traffic.trust.slope = 0.25
    _, less = life.traffic.favour(np.tile(VALUES, (4, 1)), prices, 0.7, 4)
    assert 0.7 * less == pytest.approx((HEAD_START + 0.75 * DOUBT) * VALUES[3])
    # One draft against many does not move it; many do.
    other = np.array([[1.0, 4.0, 8.0, 8.0, 8.0]])
    assert life.traffic.favour(other, prices, 0.7, 4)[0] == 3
    for _ in range(40):
        lead, _ = life.traffic.favour(np.tile(other, (4, 1)), prices, 0.7, 4)
    assert lead == 2


def test_values_are_drawn_to_their_mean_as_far_as_they_are_not_trusted() -> None:
    life = Life()
    values = np.stack([VALUES, VALUES + np.array([0, 1, 2, 4, 8])])
    scale = life.traffic.scale = np.array([1.0, 1.0, 0.5, 1.0, 1.0])
    assert life.traffic.corrected(values, 4).tolist() == (values * scale).tolist()
    life.traffic.favour(values, np.ones(5), 0.7, 4)
    life.traffic.trust.slope = 0.25
    found = life.traffic.corrected(values, 4)
    assert found.mean(axis=0) == pytest.approx((values * scale).mean(axis=0))
    assert found[1] - found[0] == pytest.approx(0.25 * scale * (values[1] - values[0]))
    # Nothing was drafted near another load: there is no mean yet.
    assert life.traffic.corrected(values, 64).tolist() == (values * scale).tolist()


def test_the_mean_follows_the_tables_and_the_scale_whatever_is_trusted() -> None:
    """What was drawn to the mean is no part of it, and no scale of before is."""
    life = Life()
    life.traffic.trust.slope = 0.0
    for scale in (1.0, 0.4):
        life.traffic.scale = np.full(5, scale)
        for _ in range(60):
            life.traffic.favour(np.tile(VALUES, (8, 1)), np.ones(5), 0.7, 4)
        assert life.traffic.corrected(2 * VALUES[None], 4)[0] == pytest.approx(scale * VALUES)


def test_promises_that_are_kept_by_half_are_trusted() -> None:
    """The scale moves while it is learned; V still tells rounds apart as well as it ever did."""
    life, rng = Life(n=1), np.random.default_rng(0)
    for _ in range(150):
        promised = rng.uniform(4.0, 16.0)
        life.round(16, max(1, round(0.5 * promised)), 10.0, 1, np.full(5, promised))
    life.traffic.settle(life.table)
    assert life.traffic.scale[3] == pytest.approx(0.5, abs=0.05)
    assert life.traffic.trust.slope > 0.85


def test_the_tuned_rate_counts_for_steps_of_the_whole_load() -> None:
    """Those who are through their prompts first are few; the first step emits nothing."""
    life = Life(n=4, rate=0.5)
    life.step(Act.DRAFT, 8, 10.0, 32)
    life.table.has_draft[:] = True
    life.traffic.settle(life.table)
    assert life.traffic.factor(32) == pytest.approx(32 * 8 / (32 * 8 + 1), rel=0.02)


def test_a_plan_that_was_not_carried_out_costs_nothing() -> None:
    life = Life()
    life.round(8, 8, 10.0)
    life.traffic.settle(life.table)
    before = life.traffic.factor(4)
    life.table.has_draft[:] = True
    for _ in range(5):
        life.step(Act.VERIFY, 8, 10.0, 4)
    assert life.traffic.factor(4) == before


def test_a_request_that_ends_in_its_first_round_is_credited() -> None:
    life = Life(n=1, rate=0.5)
    table, traffic = life.table, life.traffic
    for _ in range(200):
        table.committed[0], table.remaining[0] = 40, 5
        traffic.settle(table)
        traffic.promise(life.who, VALUES[None], np.array([8]))
        life.step(Act.VERIFY, 8, 10.0, 1)
        table.reset(0)
    # Five tokens in ten milliseconds are the rate that was expected.
    assert traffic.factor(1) == pytest.approx(1.0, rel=0.05)


def test_plain_ar_that_ends_is_credited_one_token() -> None:
    life = Life(n=1)
    table, traffic = life.table, life.traffic
    table.rounds[0], table.committed[0], table.remaining[0] = 3, 60, 90
    traffic.promise(life.who, VALUES[None], np.array([1]))
    life.step(Act.VERIFY, 1, 5.0, 1)
    before = traffic._seen(1).tokens * module._STEP
    table.reset(0)
    traffic.settle(table)
    assert traffic._seen(1).tokens - before == pytest.approx(1.0)


def test_a_slot_that_changed_hands_is_no_outcome() -> None:
    life = Life(n=1)
    table, traffic = life.table, life.traffic
    table.rounds[0], table.committed[0] = 5, 3000
    traffic.promise(life.who, VALUES[None], np.array([16]))
    life.step(Act.VERIFY, 16, 5.0, 1)
    table.rounds[0], table.committed[0] = 6, 100
    traffic.settle(table)
    assert (traffic.scale == 1.0).all()
    assert traffic.factor(1) > 0
