"""The closed loop against a scripted target on a clock of its own."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from recguide_core.bench.arrivals import parse_ramp, schedule
from recguide_core.bench.config import Cell
from recguide_core.bench.jobs import next_turn
from recguide_core.bench.load import Cooldown, Job, Sending, closed_loop, open_loop
from recguide_core.bench.rows import RequestRow, cell_row
from recguide_core.datasets import Prompt
from recguide_core.records import Finish, Finished, Request


@dataclass
class Happening:
    key: str
    tokens: list[int]
    block: int = 0
    accepted: int = 0
    source: int = 0
    finished: Finished | None = None


@dataclass
class Scripted:
    """Gives every live request two tokens a step; a step takes one second."""

    fail: frozenset[str] = frozenset()
    time: float = 100.0
    live: dict[str, list] = field(default_factory=dict)
    peak: int = 0

    def submit(self, request: Request, job: Job) -> None:
        assert request.key not in self.live
        self.live[request.key] = [request, []]
        self.peak = max(self.peak, len(self.live))

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)

    def step(self) -> list[Happening]:
        self.time += 1.0
        events = []
        for key, (request, given) in list(self.live.items()):
            new = [7] * min(2, request.max_tokens - len(given))
            given += new
            done = len(given) >= request.max_tokens or key in self.fail
            finish = Finish.ERROR if key in self.fail else Finish.LENGTH
            end = None
            if done:
                end = Finished(
                    key,
                    np.array(given),
                    np.zeros(len(given)),
                    finish,
                    rounds=len(given) // 2,
                    forwards=len(given),
                    reused=0,
                    round_tokens=len(given),
                    error="no luck" if key in self.fail else None,
                )
                del self.live[key]
            events.append(Happening(key, new, 4, len(new), 1, end))
        return events


def jobs(*lengths: int) -> list[Job]:
    return [
        Job(Prompt(f"p/{i}", (("user", f"say {i}"),), "demo", "math"), np.array([1, 2, 3]), n)
        for i, n in enumerate(lengths)
    ]


SENDING = Sending("ar@2", lambda row: None)


def measure(target: Scripted, concurrency: int, *lengths: int) -> list[RequestRow]:
    return closed_loop(target, jobs(*lengths), concurrency, SENDING)


def test_load_stays_at_the_asked_concurrency():
    target = Scripted()
    rows = measure(target, 3, *[4] * 10)
    assert target.peak == 3
    assert len(rows) == 10
    assert [row.index for row in rows] == list(range(10))


def test_a_free_slot_is_filled_at_once():
    rows = measure(Scripted(), 2, 2, 8, 2)
    # The first ends after one step; the third arrives then, while the second is still running.
    assert [row.arrival_s for row in rows] == [0.0, 0.0, 1.0]


def test_times_and_chunks_of_a_request():
    row = measure(Scripted(), 1, 5)[0]
    assert row.chunk_s == [1.0, 2.0, 3.0]
    assert row.chunk_tokens == [2, 2, 1]
    record = row.as_record()
    assert record["ttft_ms"] == pytest.approx(1000)
    assert record["tpot_ms"] == pytest.approx(500)
    assert record["e2e_ms"] == pytest.approx(3000)
    assert row.round_block == [4, 4, 4]
    assert row.round_accepted == [2, 2, 1]


def test_rows_come_as_requests_finish():
    seen = []
    closed_loop(Scripted(), jobs(6, 2), 2, Sending("x", lambda row: seen.append(row.index)))
    assert seen == [1, 0]


def test_cell_row_adds_up():
    rows = measure(Scripted(), 2, *[4] * 6)
    row = cell_row(Cell("linear", 4, 2), rows, clock="wall")
    assert row["output_tokens"] == 24
    assert row["seconds"] == 6.0
    assert row["tps"] == 4.0
    assert row["tps_per_request"] == 2.0
    assert row["tau"] == 2.0
    assert row["accepted_length"] == 2.0
    assert row["ttft_ms"] == 1000.0
    assert row["failed"] == 0
    assert row["lossless"] is None
    # Full from the second first token (1 s) to the last arrival (4 s): 3 steps of 4 tokens.
    assert row["tps_steady"] == 4.0


def test_failures_are_counted_and_never_averaged():
    rows = measure(Scripted(fail=frozenset({"ar@2#1"})), 1, 4, 4, 4)
    row = cell_row(Cell("ar", None, 1), rows, clock="wall")
    assert (row["requests"], row["failed"]) == (3, 1)
    assert row["output_tokens"] == 8
    assert rows[1].error == "no luck"
    assert rows[1].as_record()["ttft_ms"] is None


def test_a_cell_in_which_everything_failed_has_no_speed():
    rows = measure(Scripted(fail=frozenset({"ar@2#0"})), 1, 4)
    row = cell_row(Cell("ar", None, 1), rows, clock="wall")
    assert row["tps"] is None
    assert row["tau"] is None
    assert row["distributions"]["itl_token_ms"]["count"] == 0


def test_warmup_rows_are_in_no_metric():
    target = Scripted()
    warm = closed_loop(target, jobs(2), 1, replace(SENDING, warmup=True))
    rows = measure(target, 1, 4)
    both = cell_row(Cell("ar", None, 1), [*warm, *rows], clock="wall")
    alone = cell_row(Cell("ar", None, 1), rows, clock="wall")
    assert both == alone
    assert warm[0].key != rows[0].key


def test_verdict_of_a_cell_is_its_weakest():
    rows = measure(Scripted(), 1, 2, 2, 2)
    for row, verdict in zip(rows, ("exact", "near-tie", "exact"), strict=True):
        row.lossless = verdict
    row = cell_row(Cell("linear", 4, 1), rows, clock="wall")
    assert row["lossless"] == "near-tie"
    assert row["lossless_counts"] == {"exact": 2, "near-tie": 1, "different": 0}


def test_goodput_counts_requests_within_the_limits():
    rows = measure(Scripted(), 1, 4, 4)
    limits = cell_row(Cell("ar", None, 1), rows, clock="wall", limits_ms=(1000.0, 400.0))
    assert limits["goodput"] == 2 / 4.0
    assert cell_row(Cell("ar", None, 1), rows, clock="wall")["goodput"] is None


def test_a_row_survives_its_record():
    row = measure(Scripted(), 1, 4)[0]
    assert RequestRow.from_record(row.as_record()) == row


def test_arrivals_come_at_their_moments_whatever_is_in_flight():
    target = Scripted()
    moments = [0.0, 0.5, 0.6, 20.0]
    rows = open_loop(target, jobs(8, 8, 8, 2), moments, SENDING)
    assert [row.arrival_s for row in rows] == moments
    assert target.peak == 3
    # The queue is empty long before the last one comes; time is let pass, not stepped through.
    assert rows[3].first_s == 21.0
    # Handed over after its moment: what it waited is part of its latency.
    assert rows[1].first_s - rows[1].arrival_s == 1.5


def test_a_ramp_goes_up_and_down():
    target, ramp = Scripted(), parse_ramp("1:6:1")
    seen = []
    total = 60

    def in_flight(started):
        seen.append(ramp.in_flight(started, total))
        return seen[-1]

    rows = closed_loop(target, jobs(*[4] * total), in_flight, SENDING)
    assert len(rows) == total
    assert (seen[0], max(seen), seen[-1]) == (1, 6, 1)
    assert target.peak == 6


def test_schedules():
    assert schedule(4, 2.0, "constant", 0).tolist() == [0.0, 0.5, 1.0, 1.5]
    drawn = schedule(4001, 5.0, "poisson", 1)
    assert drawn[0] == 0.0
    assert (np.diff(drawn) >= 0).all()
    assert np.diff(drawn).mean() == pytest.approx(0.2, rel=0.05)
    assert (schedule(9, 5.0, "poisson", 1) == schedule(9, 5.0, "poisson", 1)).all()
    assert (schedule(9, 5.0, "poisson", 1) != schedule(9, 5.0, "poisson", 2)).any()


def chats(*questions: int) -> list[Job]:
    """Conversations of so many questions; each answer has four tokens."""
    return [
        Job(
            Prompt(f"c/{i}", (("user", "first"),), "demo", later=tuple(map(str, range(1, n)))),
            np.array([1, 2, 3]),
            4,
        )
        for i, n in enumerate(questions)
    ]


def follow(job: Job, row: RequestRow) -> Job:
    """Puts the answer into the history, as ids."""
    history = np.concatenate([job.tokens, row.tokens, [5]])
    return replace(next_turn(job, "said"), tokens=history)


def test_a_conversation_goes_on_with_its_own_answers():
    target = Scripted()
    sending = replace(SENDING, follow=follow)
    rows = closed_loop(target, chats(3, 1, 2), 1, sending)
    assert [(row.index, row.turn) for row in rows] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
        (2, 1),
    ]
    assert len({row.key for row in rows}) == 6
    assert rows[0].prompt == [1, 2, 3]
    assert rows[1].prompt == [1, 2, 3, *rows[0].tokens, 5]
    assert rows[2].prompt == [*rows[1].prompt, *rows[1].tokens, 5]
    # The next conversation starts when the one before has ended, not at each turn's end.
    assert [row.arrival_s for row in rows] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert target.peak == 1
    cell = cell_row(Cell("ar", None, 1), rows, clock="wall")
    assert [(t["turn"], t["requests"], t["prompt_tokens"]) for t in cell["turns"]] == [
        (0, 3, 3.0),
        (1, 2, 8.0),
        (2, 1, 13.0),
    ]
    assert cell_row(Cell("ar", None, 1), rows[3:4], clock="wall")["turns"] is None


def test_a_turn_that_fails_or_cannot_be_sent_ends_its_conversation():
    sending = replace(SENDING, follow=follow)
    rows = closed_loop(Scripted(fail=frozenset({"ar@2#0.1"})), chats(4), 1, sending)
    assert [(row.turn, row.ok) for row in rows] == [(0, True), (1, False)]

    def too_long(job, row):
        return replace(follow(job, row), fault="no room")

    seen = []
    sending = replace(sending, follow=too_long, sink=seen.append)
    rows = closed_loop(Scripted(), chats(3, 1), 1, sending)
    assert [(row.index, row.turn, row.error) for row in rows] == [
        (0, 0, None),
        (0, 1, "no room"),
        (1, 0, None),
    ]
    assert len(seen) == 3
    assert cell_row(Cell("ar", None, 1), rows, clock="wall")["failed"] == 1


def test_a_cooldown_holds_the_load_until_the_last_measured_request_ends():
    target, cooldown = Scripted(), Cooldown(jobs(*[40] * 5))
    rows = closed_loop(target, jobs(4, 4, 12), 2, SENDING, cooldown)
    # Its requests are longer than the window; the window did not wait for them.
    assert target.time == 108.0
    assert [row.end_s for row in rows] == [2.0, 2.0, 8.0]
    assert len(target.live) == 1
    cool = cooldown.drain()
    assert not target.live
    assert [(row.cooldown, row.arrival_s) for row in cool] == [(True, 2.0)]
    both = cell_row(Cell("ar", None, 2), [*rows, *cool], clock="wall")
    assert both == cell_row(Cell("ar", None, 2), rows, clock="wall")
    assert cool[0].key == "ar@2#c0"


def test_a_cooldown_sends_no_more_than_it_has_and_none_without_need():
    cooldown = Cooldown(jobs(2, 2))
    closed_loop(Scripted(), jobs(4, 20), 2, SENDING, cooldown)
    assert len(cooldown.drain()) == 2
    unused = Cooldown(jobs(2, 2))
    closed_loop(Scripted(), jobs(4), 1, SENDING, unused)
    assert unused.drain() == []
    assert Cooldown([]).drain() == []


def test_a_cooldown_of_arrivals_goes_on_at_their_pace():
    cooldown = Cooldown(jobs(2, 2, 2))
    rows = open_loop(Scripted(), jobs(2, 2, 14), [0.0, 3.0, 6.0], SENDING, cooldown)
    assert rows[-1].end_s == 13.0
    assert [row.arrival_s for row in cooldown.drain()] == [9.0, 12.0]
