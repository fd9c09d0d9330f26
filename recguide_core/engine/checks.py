"""What a request must satisfy before it is queued: faults that the caller can mend. No torch."""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np

from recguide_core.engine.planners import check_block
from recguide_core.errors import UsageError
from recguide_core.pages import PageTable
from recguide_core.records import Request, Sampling

_SEEDS = 1 << 63


def check_request(
    request: Request,
    fixed_block: int,
    *,
    context: int,
    pages: PageTable,
    planners: int,
    vocab: int | None,
) -> None:
    """Refuse a request that can never run.

    Args:
        planners: how many the engine has; vocab: token ids lie below it, None = not known.

    Raises:
        UsageError: names the field and the value.
    """
    _check_prompt(request.prompt, context, vocab)
    if not _whole(request.max_tokens) or request.max_tokens < 1:
        raise UsageError(f"max_tokens is {request.max_tokens!r}.", "Ask for at least one token.")
    needed = min(len(request.prompt) + request.max_tokens, context)
    if pages.pages_for(needed) > pages.pages:
        raise UsageError(
            f"One request of {needed} tokens does not fit into the KV pool of "
            f"{pages.pages * pages.page_size} tokens.",
            "Raise --kv-tokens, or lower --max-tokens.",
        )
    if not _whole(request.planner) or not 0 <= request.planner < planners:
        raise UsageError(f"There is no planner {request.planner!r}.", f"Use 0..{planners - 1}.")
    if fixed_block:
        check_block(fixed_block)
    most = vocab or _SEEDS
    if request.logprobs is not None and not (
        _whole(request.logprobs) and 0 <= request.logprobs < most
    ):
        raise UsageError(
            f"logprobs is {request.logprobs!r}.", "Ask for 0 or more alternatives a token."
        )
    _check_sampling(request.sampling, most)


def _check_prompt(prompt: np.ndarray, context: int, vocab: int | None) -> None:
    length = len(prompt)
    if length < 1:
        raise UsageError("The prompt is empty.", "Send at least one token.")
    if length >= context:
        raise UsageError(
            f"The prompt has {length} tokens; the context holds {context} and at least "
            "one must be left for the answer.",
            "Shorten the prompt or use a model with a longer context.",
        )
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise UsageError("The prompt is no list of token ids.", "Send whole numbers.")
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or (vocab is not None and highest >= vocab):
        wrong = lowest if lowest < 0 else highest
        raise UsageError(
            f"The prompt holds token {wrong}; the vocabulary has 0..{(vocab or 0) - 1}.",
            "Encode the prompt with this model's tokenizer.",
        )


def _check_sampling(sampling: Sampling, vocab: int) -> None:
    ranges = (
        ("temperature", 0 <= sampling.temperature < math.inf, "Use 0 (greedy) or more."),
        ("top_p", 0 < sampling.top_p <= 1, "Use a number above 0, up to 1."),
        ("top_k", _whole(sampling.top_k) and sampling.top_k >= 0, "Use 0 (off) or more."),
        ("min_p", 0 <= sampling.min_p <= 1, "Use a number from 0 to 1."),
        (
            "seed",
            _whole(sampling.seed) and -_SEEDS <= sampling.seed < _SEEDS,
            "Use a whole number of at most 64 bits.",
        ),
        (
            "logit_bias",
            all(0 <= t < vocab and math.isfinite(a) for t, a in sampling.logit_bias),
            "Give finite numbers for token ids of the vocabulary.",
        ),
    )
    for name, fine, remedy in ranges:
        if not fine:
            raise UsageError(f"{name} is {getattr(sampling, name)!r}.", remedy)


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
