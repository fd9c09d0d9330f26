"""One row per request, and the row of a cell that is computed from them.

Rows are what is saved; every number of a report can be computed again from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from recguide_core import metrics
from recguide_core.bench.config import Cell
from recguide_core.records import Finish


@dataclass(slots=True)
class RequestRow:
    """What was seen of one request. Times are seconds since the window opened.

    Attributes:
        cell, index: the cell's key and the request's place in it; `key` is unique in the run.
        prompt_id, prompt_hash, dataset, category: of its prompt.
        warmup, cooldown: ran before the window, or beside its end; in no metric.
        turn: place in its conversation, 0 for the first.
        arrival_s, first_s, end_s: handed over; first and last token known.
        chunk_s, chunk_tokens: time and size of each chunk that arrived.
        finish: stop, length, abort or error; `error` says what failed.
        rounds, forwards, reused, round_tokens: see records.Finished.
        round_block, round_accepted, round_source: B, A and draft source of each round.
        prompt, tokens: ids of prompt and output; origins: where each token of the output came
            from (records.Origin).
        token_count: output tokens as a server counts them; None where `tokens` has them.
        answer: a server's text.
        lossless: exact, near-tie, different, or None where not checked; `evidence` is the
            position, tokens and margin of the first difference.
        bits: digest of each token's decision, of bitwise runs (bits.py); bits_differ: first place
            where it is not AR's, -1 for none, None where not compared.
    """

    cell: str
    index: int
    prompt_id: str
    prompt_hash: str
    dataset: str
    category: str
    prompt_tokens: int
    max_tokens: int
    arrival_s: float
    warmup: bool = False
    cooldown: bool = False
    turn: int = 0
    first_s: float | None = None
    end_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    finish: str = ""
    error: str | None = None
    rounds: int = 0
    forwards: int = 0
    reused: int = 0
    round_tokens: int = 0
    round_block: list[int] = field(default_factory=list)
    round_accepted: list[int] = field(default_factory=list)
    round_source: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    token_count: int | None = None
    answer: str = ""
    origins: list[int] = field(default_factory=list)
    lossless: str | None = None
    evidence: dict[str, Any] | None = None
    bits: list[int] = field(default_factory=list)
    bits_differ: int | None = None

    @property
    def key(self) -> str:
        phase = "w" if self.warmup else "c" if self.cooldown else ""
        return f"{self.cell}#{phase}{self.index}{f'.{self.turn}' if self.turn else ''}"

    @property
    def measured(self) -> bool:
        """Ran inside the window."""
        return not (self.warmup or self.cooldown)

    @property
    def ok(self) -> bool:
        """Finished by itself, so that it counts in means."""
        return self.finish in (Finish.STOP, Finish.LENGTH)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) if self.token_count is None else self.token_count

    @property
    def chunks_counted(self) -> bool:
        """Whether the sizes of the chunks are known (a server tells only their sum)."""
        return sum(self.chunk_tokens) == self.output_tokens

    def as_record(self) -> dict[str, Any]:
        """The row as JSON and Parquet write it, derived latencies included."""
        record = {"key": self.key, **asdict(self), "output_tokens": self.output_tokens}
        record["ttft_ms"] = record["tpot_ms"] = record["e2e_ms"] = None
        if self.ok and self.first_s is not None and self.end_s is not None:
            record["ttft_ms"] = metrics.ttft_ms(self.arrival_s, self.first_s)
            record["tpot_ms"] = metrics.tpot_ms(self.first_s, self.end_s, self.output_tokens)
            record["e2e_ms"] = 1e3 * (self.end_s - self.arrival_s)
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> RequestRow:
        """The row of a record that `as_record` wrote; derived columns are left out."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in record.items() if name in names})


def difference(row: RequestRow) -> dict[str, Any]:
    """What a reader needs to look at a text that is not AR's."""
    return {
        "key": row.key,
        "prompt_id": row.prompt_id,
        "verdict": row.lossless,
        **(row.evidence or {}),
    }


def differences(rows: Sequence[RequestRow]) -> list[dict[str, Any]]:
    """The checked rows whose text is not AR's to the token."""
    return [difference(row) for row in rows if row.lossless not in (None, "exact")]


def verdict_of(rows: Sequence[RequestRow]) -> str | None:
    """The weakest verdict of the checked rows; None when none was checked."""
    found = {row.lossless for row in rows if row.lossless is not None}
    return next((v for v in ("different", "near-tie", "exact") if v in found), None)


def cell_row(
    cell: Cell,
    rows: Sequence[RequestRow],
    *,
    clock: str,
    host_share: float | None = None,
    limits_ms: tuple[float | None, float | None] = (None, None),
) -> dict[str, Any]:
    """The row of a cell: one value per metric, distributions beside them.

    Args:
        rows: the cell's requests; those of warm-up and cool-down are passed over, failed ones
            counted.
        clock: `wall`, or the name of the cost table that time was charged from.
        limits_ms: TTFT and TPOT limits of goodput.
    """
    measured = [row for row in rows if row.measured]
    good = [row for row in measured if row.ok]
    records = [row.as_record() for row in good]
    tokens = sum(row.output_tokens for row in good)
    forwards = sum(row.forwards for row in good)
    rounds = sum(row.rounds for row in good)
    round_tokens = sum(row.round_tokens for row in good)
    seconds = _duration(good)
    in_time = sum(
        metrics.within_limits(r["ttft_ms"], r["tpot_ms"], *limits_ms)
        for r in records
        if r["ttft_ms"] is not None
    )
    spread = _distributions(good, records)
    return {
        "method": cell.method,
        "block_size": cell.block_size,
        "concurrency": cell.concurrency,
        "rate": cell.rate,
        "ramp": cell.ramp,
        "speed": cell.speed,
        "requests": len(measured),
        "failed": len(measured) - len(good),
        "prompt_tokens": sum(row.prompt_tokens for row in good),
        "output_tokens": tokens,
        "seconds": seconds,
        "tps": metrics.ratio(tokens, seconds),
        "tps_steady": None if cell.open_loop or cell.ramp else _steady(good, cell.concurrency),
        "tps_per_request": spread["tps_per_request"]["mean"],
        "requests_per_s": metrics.ratio(len(good), seconds),
        "goodput": None if limits_ms == (None, None) else metrics.ratio(in_time, seconds),
        "tau": metrics.tau(round_tokens, forwards),
        "tpf": metrics.tpf(round_tokens, forwards),
        "tpf_with_prefill": metrics.tpf_with_prefill(tokens, forwards, len(good)),
        "accepted_length": metrics.accepted_length(round_tokens, rounds),
        "reuse": metrics.reuse(sum(row.reused for row in good), rounds),
        "rounds": rounds,
        "forwards": forwards,
        "ttft_ms": spread["ttft_ms"]["p50"],
        "tpot_ms": spread["tpot_ms"]["p50"],
        "e2e_ms": spread["e2e_ms"]["p50"],
        "host_share": host_share,
        "lossless": verdict_of(measured),
        "lossless_counts": verdict_counts(measured),
        "differences": differences(measured),
        "bitwise": bitwise_counts(measured),
        "clock": clock,
        "turns": _turns(good),
        "distributions": spread,
    }


def cell_of(row: dict[str, Any]) -> Cell:
    """The cell that a row belongs to."""
    return Cell(
        row["method"],
        row["block_size"],
        row["concurrency"],
        rate=row.get("rate"),
        ramp=row.get("ramp"),
        speed=row.get("speed"),
    )


def _turns(rows: Sequence[RequestRow]) -> list[dict[str, Any]] | None:
    """Means by place in the conversation; None where nobody asked twice."""
    by_turn: dict[int, list[RequestRow]] = {}
    for row in rows:
        by_turn.setdefault(row.turn, []).append(row)
    if max(by_turn, default=0) == 0:
        return None
    found = []
    for turn, mine in sorted(by_turn.items()):
        waits = [row.as_record()["ttft_ms"] for row in mine]
        found.append(
            {
                "turn": turn,
                "requests": len(mine),
                "prompt_tokens": metrics.ratio(sum(r.prompt_tokens for r in mine), len(mine)),
                "output_tokens": metrics.ratio(sum(r.output_tokens for r in mine), len(mine)),
                "accepted_length": metrics.accepted_length(
                    sum(r.round_tokens for r in mine), sum(r.rounds for r in mine)
                ),
                "ttft_ms": metrics.summary([w for w in waits if w is not None])["p50"],
            }
        )
    return found


def _duration(rows: Sequence[RequestRow]) -> float:
    ends = [row.end_s for row in rows if row.end_s is not None]
    return max(ends) - min(row.arrival_s for row in rows) if ends else 0.0


def _steady(rows: Sequence[RequestRow], concurrency: int) -> float | None:
    # The turns behind a first one say nothing of when the last conversation came.
    opening = [row for row in rows if row.turn == 0]
    firsts = [row.first_s for row in opening if row.first_s is not None]
    window = metrics.steady_window([row.arrival_s for row in opening], firsts, concurrency)
    if window is None or not all(row.chunks_counted for row in rows):
        return None
    times = np.array([t for row in rows for t in row.chunk_s], dtype=np.float64)
    counts = np.array([n for row in rows for n in row.chunk_tokens], dtype=np.int64)
    return metrics.ratio(metrics.tokens_between(times, counts, window), window[1] - window[0])


def _distributions(
    rows: Sequence[RequestRow], records: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Percentiles with sample counts, per request or per chunk or token."""
    speeds = [
        row.output_tokens / (row.end_s - row.arrival_s)
        for row in rows
        if row.end_s is not None and row.end_s > row.arrival_s
    ]
    spread = {"tps_per_request": metrics.summary(speeds)}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        spread[name] = metrics.summary([r[name] for r in records if r[name] is not None])
    empty = [np.empty(0)]
    by_chunk = [metrics.chunk_gaps_ms(row.chunk_s) for row in rows] or empty
    counted = [row for row in rows if row.chunks_counted]
    by_token = [metrics.token_gaps_ms(r.chunk_s, r.chunk_tokens) for r in counted] or empty
    spread["itl_chunk_ms"] = metrics.summary(np.concatenate(by_chunk))
    spread["itl_token_ms"] = metrics.summary(np.concatenate(by_token))
    sizes = [float(n) for row in counted for n in row.chunk_tokens[1:]]
    spread["chunk_tokens"] = metrics.summary(sizes)
    return spread


def bitwise_counts(rows: Sequence[RequestRow]) -> dict[str, int] | None:
    """Outputs compared with AR bit for bit, their tokens, and how many are not the same."""
    compared = [row for row in rows if row.bits_differ is not None]
    if not compared:
        return None
    differing = sum(row.bits_differ != -1 for row in compared)
    tokens = sum(len(row.bits) for row in compared)
    return {"outputs": len(compared), "tokens": tokens, "differing": differing}


def verdict_counts(rows: Sequence[RequestRow]) -> dict[str, int]:
    """How many outputs got each verdict."""
    words = ("exact", "near-tie", "different")
    return {word: sum(row.lossless == word for row in rows) for word in words}
