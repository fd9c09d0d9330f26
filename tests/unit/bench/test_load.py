"""The closed loop against a scripted target on a clock of its own."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from recguide_core.bench.config import Cell
from recguide_core.bench.load import Job, closed_loop
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

    def submit(self, request: Request) -> None:
        assert request.key not in self.live
        self.live[request.key] = [request, []]
        self.peak = max(self.peak, len(self.live))

    def now(self) -> float:
        return self.time

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


def measure(target: Scripted, concurrency: int, *lengths: int) -> list[RequestRow]:
    return closed_loop(target, "ar@2", jobs(*lengths), concurrency, sink=lambda row: None)


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
    closed_loop(Scripted(), "x", jobs(6, 2), 2, sink=lambda row: seen.append(row.index))
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
    warm = closed_loop(target, "ar@2", jobs(2), 1, sink=lambda row: None, warmup=True)
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
