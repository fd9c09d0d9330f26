"""From verified tokens to what a request emits: stops, budgets, origins, records. No torch.

Stops are checked at every token of a window; what lies behind one is neither emitted nor counted.
"""

from __future__ import annotations

import numpy as np

from recguide_core.engine.scheduler import Live
from recguide_core.records import Finish, Finished, Origin

# Plain integers: looking up an enum member costs as much as the rest of a short round.
_AR, _DRAFT, _BONUS, _CORRECTION = (
    int(o) for o in (Origin.AR, Origin.DRAFT, Origin.BONUS, Origin.CORRECTION)
)


def cut_at_stop(
    live: Live, tokens: list[int], eos_ids: frozenset[int]
) -> tuple[list[int], Finish | None, str | None]:
    """The part of a window that a request emits, and why it ends there.

    Returns:
        emitted tokens, the finish (None = goes on), and the text of a failing stop rule.
    """
    request = live.request
    left = request.max_tokens - len(live.tokens)
    finish = Finish.LENGTH if len(tokens) >= left else None
    tokens = tokens[:left]
    ends = request.stop_ids if request.ignore_eos else request.stop_ids | eos_ids
    if not ends.isdisjoint(tokens):
        first = next(i for i, token in enumerate(tokens) if token in ends)
        tokens, finish = tokens[: first + 1], Finish.STOP
    if request.stop is None:
        return tokens, finish, None
    for i, token in enumerate(tokens):
        try:
            stops = request.stop(token)
        except Exception as error:
            return tokens[:i], Finish.ERROR, f"stop rule failed: {error}"
        if stops:
            return tokens[: i + 1], Finish.STOP, None
    return tokens, finish, None


def origins_of(width: int, matched: int, count: int) -> list[int]:
    """Origin of each of the first `count` tokens of a round."""
    if width == 1:
        return [_AR] * count
    last = _BONUS if matched == width - 1 else _CORRECTION
    return ([_DRAFT] * matched + [last])[:count]


def finished(live: Live, finish: Finish, error: str | None = None) -> Finished:
    """The record of a request at its end."""
    asked = live.request.logprobs is not None
    return Finished(
        key=live.request.key,
        tokens=np.asarray(live.tokens, dtype=np.int64),
        origins=np.asarray(live.origins, dtype=np.int64),
        finish=finish,
        rounds=live.rounds,
        forwards=live.forwards,
        reused=live.reused,
        round_tokens=live.round_tokens,
        logprobs=np.asarray(live.logprobs, dtype=np.float32) if asked else None,
        top_logprobs=live.top_logprobs if asked else None,
        error=error,
    )
