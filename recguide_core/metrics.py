"""Every metric once: name, unit, formula and the function that computes it.

All printers, reports and comparisons read `METRICS` and call these functions. A metric that a
run cannot support (no rounds, one token, nothing finished) is None, never 0 and never NaN.

Counts of a request, after `records.Finished`: n output tokens, r decode rounds, f forwards that
carried its decode rows, u rounds whose draft came from a branch, m tokens that rounds emitted.
The prompt's forwards and the token that they give count for none of r, f, u, m.
Times of a request in seconds: `arrival` (handed to the engine), `first` and `end` (first and last
token known to the caller).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Metric:
    """What a number means."""

    name: str
    unit: str
    formula: str
    better: Literal["higher", "lower", "neither"] = "higher"


METRICS: Mapping[str, Metric] = {
    m.name: m
    for m in (
        Metric("tps", "tokens/s", "output tokens / (last end - first arrival), whole run"),
        Metric("tps_steady", "tokens/s", "output tokens / time while all C slots were busy"),
        Metric("tps_per_request", "tokens/s", "mean over requests of n / (end - arrival)"),
        Metric("requests_per_s", "requests/s", "finished requests / (last end - first arrival)"),
        Metric("goodput", "requests/s", "finished requests within the limits / run time"),
        Metric("tau", "tokens", "2 sum(m) / sum(f): tokens per window of two forwards"),
        Metric("tpf", "tokens", "sum(m) / sum(f): tokens per decode forward"),
        Metric("tpf_with_prefill", "tokens", "sum(n) / (sum(f) + prefill forwards)"),
        Metric("accepted_length", "tokens", "sum(m) / sum(r): mean A of a round"),
        Metric("reuse", "share", "sum(u) / sum(r): rounds whose draft came from a branch"),
        Metric("ttft_ms", "ms", "first - arrival", "lower"),
        Metric("tpot_ms", "ms", "(end - first) / (n - 1), n >= 2", "lower"),
        Metric("itl_token_ms", "ms", "gap before a chunk / its tokens, per token", "lower"),
        Metric("itl_chunk_ms", "ms", "gap between two chunks, per chunk", "lower"),
        Metric("chunk_tokens", "tokens", "tokens that one chunk brings", "neither"),
        Metric("e2e_ms", "ms", "end - arrival", "lower"),
        Metric(
            "host_share",
            "share",
            "1 - (the same forwards replayed on prebuilt tensors) / step wall",
            "lower",
        ),
        Metric("achieved", "share", "physical floor of a step / its measured time", "higher"),
        Metric("query_tokens_per_forward", "tokens", "packed query tokens / forwards", "neither"),
    )
}


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient, or None where it has no meaning."""
    return float(numerator) / float(denominator) if denominator > 0 else None


def tau(round_tokens: float, forwards: float) -> float | None:
    """Tokens per window of two forwards; mean A for serial draft-verify, 2 for plain AR."""
    return ratio(2 * round_tokens, forwards)


def tpf(round_tokens: float, forwards: float) -> float | None:
    """Tokens per decode forward: tau / 2."""
    return ratio(round_tokens, forwards)


def tpf_with_prefill(tokens: float, forwards: float, prefill_forwards: float) -> float | None:
    """Output tokens per forward, the prompt's forwards included."""
    return ratio(tokens, forwards + prefill_forwards)


def accepted_length(round_tokens: float, rounds: float) -> float | None:
    """Mean A: matched drafts plus the verifier's token."""
    return ratio(round_tokens, rounds)


def reuse(reused: float, rounds: float) -> float | None:
    """h: share of rounds whose draft came from a branch."""
    return ratio(reused, rounds)


def ttft_ms(arrival: float, first: float) -> float:
    """Time to the first token."""
    return 1e3 * (first - arrival)


def tpot_ms(first: float, end: float, tokens: int) -> float | None:
    """Mean time per token after the first."""
    value = ratio(end - first, tokens - 1)
    return None if value is None else 1e3 * value


def chunk_gaps_ms(times: Sequence[float]) -> npt.NDArray[np.float64]:
    """Gaps between chunks, as a streaming client sees them: float64 [chunks - 1], ms."""
    return 1e3 * np.diff(np.asarray(times, dtype=np.float64))


def token_gaps_ms(times: Sequence[float], counts: Sequence[int]) -> npt.NDArray[np.float64]:
    """Gap before each chunk spread over its tokens: float64 [tokens behind chunk 0], ms.

    A chunk of k tokens that arrives g ms after the one before gives k values g / k.
    """
    sizes = np.asarray(counts, dtype=np.int64)[1:]
    return np.repeat(chunk_gaps_ms(times) / np.maximum(sizes, 1), sizes)


def host_share(step_seconds: float, replay_seconds: float) -> float | None:
    """Share of a step that is not its forward; negative noise is shown, not hidden."""
    return ratio(step_seconds - replay_seconds, step_seconds)


def host_share_of(steps: npt.ArrayLike, replays: npt.ArrayLike) -> float | None:
    """`host_share` of many steps, of which the tenth with the highest and the tenth with the
    lowest share are left out: a neighbour on the machine meets one side of a pair only.

    Args:
        steps: seconds of each step, [n]; replays: seconds of its forward alone, [n].
    """
    wall, forward = np.asarray(steps, np.float64), np.asarray(replays, np.float64)
    order = np.argsort(forward / wall, kind="stable")
    kept = order[len(order) // 10 : len(order) - len(order) // 10]
    return host_share(float(wall[kept].sum()), float(forward[kept].sum()))


def steady_window(
    arrivals: Sequence[float], firsts: Sequence[float], concurrency: int
) -> tuple[float, float] | None:
    """The time in which all C slots of a closed loop were busy decoding, or None.

    It opens with the first token of the C-th request to get one, and shuts with the last
    arrival: from then on slots empty and nobody follows.
    """
    if len(firsts) < concurrency or len(arrivals) <= concurrency:
        return None
    opened = float(np.sort(np.asarray(firsts))[concurrency - 1])
    shut = float(np.max(arrivals))
    return (opened, shut) if shut > opened else None


def tokens_between(
    times: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], window: tuple[float, float]
) -> int:
    """Tokens of chunks that arrived inside the window (open, shut]."""
    inside = (times > window[0]) & (times <= window[1])
    return int(counts[inside].sum())


def within_limits(
    ttft: float, tpot: float | None, ttft_limit_ms: float | None, tpot_limit_ms: float | None
) -> bool:
    """Whether a request met its latency limits (goodput); a limit of None always holds."""
    if ttft_limit_ms is not None and ttft > ttft_limit_ms:
        return False
    return tpot_limit_ms is None or tpot is None or tpot <= tpot_limit_ms


def summary(values: Sequence[float] | npt.NDArray[np.float64]) -> dict[str, float | int | None]:
    """Mean, percentiles and sample count of a distribution; None where there is no sample."""
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[np.isfinite(sample)]
    record: dict[str, float | int | None] = {"count": int(sample.size)}
    record["mean"] = float(sample.mean()) if sample.size else None
    for percent in PERCENTILES:
        record[f"p{percent}"] = float(np.percentile(sample, percent)) if sample.size else None
    return record
