"""One JSON line per settled round: what a replay in the other engine must repeat. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.records import IntArray, Outcome, Plan


def round_lines(
    keys: list[str],
    plan: Plan,
    entry: IntArray,
    outcome: Outcome,
    source: IntArray,
    tokens: IntArray,
) -> list[dict[str, Any]]:
    """Decisions and tokens of the rounds of a step; entry: index of each into the plan [m]."""
    lines = []
    for i, at in enumerate(entry.tolist()):
        used = plan.branch_kind[at] >= 0
        grid = (plan.branch_kind, plan.branch_parent, plan.branch_alt, plan.branch_block)
        matched = int(outcome.matched[i])
        lines.append(
            {
                "request": keys[i],
                "block": int(outcome.width[i]),
                "accepted": matched + 1,
                "source": int(source[i]),
                "hit": int(outcome.hit[i]),
                "hit_block": int(outcome.hit_block[i]),
                "branches": np.stack([g[at][used] for g in grid], 1).tolist(),
                "tokens": tokens[i, : matched + 1].tolist(),
                "entropy": round(float(outcome.entropy[i]), 4),
            }
        )
    return lines


def trace_writer(path: Path) -> Callable[[Any], None]:
    """An observer of `StepDriver` that appends its rounds to a file."""

    def write(record: Any) -> None:
        lines = round_lines(
            record.keys,
            record.plan,
            record.verified.entry,
            record.outcome,
            record.source,
            record.verified.tokens,
        )
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    return write
