"""Trace rows of invented requests whose run lengths are known."""

from collections.abc import Sequence
from typing import Any

MENU = (1, 4, 8)
MODEL = {"model": "m", "model_hash": "abc", "device": "cpu-any", "date": "d", "source": "s"}


def row(request: str, round_: int, block: int, chosen: bool, run: int, **change: Any) -> dict:
    """A row whose draft is right for `run` tokens; position run + 1 is risky if it is drafted."""
    matched = min(run, block - 1)
    full = matched == block - 1
    margin = [0.2 if i == run + 1 else 0.95 for i in range(1, block)]
    risky = [run + 1] if run + 1 < block else []
    return {
        "data": "set",
        "request": request,
        "round": round_,
        "block_size": block,
        "chosen": chosen,
        "committed": 10 + round_,
        "accepted": matched + 1,
        "matched": matched,
        "full": full,
        "eos": False,
        "reject_position": -1 if full else matched + 1,
        "entropy": [0.1 * (round_ + 1)] * max(1, min(matched + 1, block - 1)),
        "margin": margin,
        "confidence": margin,
        "risky": risky,
        "top1": [7] * len(risky),
        "top2": [50 + round_] * len(risky),
        "verdict": 50 + round_,
        "branch": ("hit" if full else "") if chosen and block > 1 else "",
        **change,
    }


def request_rows(name: str, runs: Sequence[int], chosen: Sequence[int]) -> list[dict]:
    """All rows of a request: `runs` right tokens in each round, and the committed block."""
    return [
        row(name, t, block, block == chosen[t], run) for t, run in enumerate(runs) for block in MENU
    ]


def columns(rows: Sequence[dict]) -> dict[str, list[Any]]:
    return {key: [r[key] for r in rows] for key in rows[0]}
