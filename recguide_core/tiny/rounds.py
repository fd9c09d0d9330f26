"""Rounds of linear self-speculation, replayed over greedy answers.

Greedy output does not depend on drafts, so the rounds of a request follow from its answer: at each
round a draft of B tokens is compared with the tokens that come next. One round emits A = c + 1
tokens for c accepted drafts, 1 <= A <= B (`[seed, MASK x (B-1)]` over the causal cache, unshifted
logits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recguide_core.tiny.decode import causal_cache
from recguide_core.tiny.lora import switch_adapter
from recguide_core.tiny.network import EOS, MASK, Cache, TinyModel

# (seed tokens [n], start positions [n], B) -> logits [n, B, vocab] of a draft
Drafter = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Round:
    """One round: the accepted length and how sure the draft was.

    accepted: A. full: all B - 1 drafts passed. passed, passed_margin: top probability, and top-1
    minus top-2, of the drafts that passed. rejected, rejected_margin: those of the first that
    failed, None if none did. rank: rank of the verifier's token in the failed draft's logits, where
    the draft token has rank 1.
    """

    request: int
    accepted: int
    full: bool
    passed: list[float]
    passed_margin: list[float]
    rejected: float | None
    rejected_margin: float | None
    rank: int | None


def model_drafter(model: TinyModel, cache: Cache) -> Drafter:
    """Return the model's own drafting over a causal cache of whole texts."""

    def draft(seeds: Tensor, starts: Tensor, B: int) -> Tensor:
        n = len(seeds)
        tokens = torch.full((n, B), MASK)
        tokens[:, 0] = seeds
        positions = starts[:, None] + torch.arange(B)
        width = int(starts.max())
        past = [(k[:, :, :width], v[:, :, :width]) for k, v in cache]
        before = (torch.arange(width)[None] < starts[:, None])[:, None, None].expand(n, 1, B, width)
        mask = torch.cat([before, torch.ones(n, 1, B, B, dtype=torch.bool)], -1)
        switch_adapter(model, 0)
        return model.logits(model.step(tokens, positions, mask, past)[0])

    return draft


@dataclass(frozen=True)
class _Draft:
    """A batch of drafts: top-2 ids and probabilities of every slot, and the logits."""

    ids: list[list[int]]
    first: list[list[float]]
    second: list[list[float]]
    logits: Tensor

    @staticmethod
    def of(logits: Tensor) -> _Draft:
        """Read logits [n, B, vocab]; MASK is excluded."""
        logits = logits.float()
        logits[..., MASK] = float("-inf")
        top, ids = logits.topk(2, -1)
        probability = (top - logits.logsumexp(-1, keepdim=True)).exp()
        return _Draft(
            ids[..., 0].tolist(), probability[..., 0].tolist(), probability[..., 1].tolist(), logits
        )

    def round(self, row: int, request: int, rest: list[int]) -> Round:
        """Compare the draft of `row` with the tokens that follow its seed."""
        draft, first, second = self.ids[row], self.first[row], self.second[row]
        B = len(draft)
        passed = 0
        while passed < min(B - 1, len(rest)) and draft[passed + 1] == rest[passed]:
            passed += 1
        ended = passed == len(rest)
        margins = [p - q for p, q in zip(first, second, strict=True)]
        kept = slice(1, passed + 1)
        if passed == B - 1 or ended:
            accepted = passed if ended else passed + 1
            full = passed == B - 1
            return Round(request, accepted, full, first[kept], margins[kept], None, None, None)
        failed = passed + 1
        logits = self.logits[row, failed]
        rank = int((logits > logits[rest[passed]]).sum()) + 1
        return Round(
            request,
            passed + 1,
            False,
            first[kept],
            margins[kept],
            first[failed],
            margins[failed],
            rank,
        )


def play(
    drafter: Callable[[list[int]], Drafter],
    prompts: list[list[int]],
    answers: list[list[int]],
    block: int,
) -> list[list[Round]]:
    """Return the rounds of every request.

    `drafter(rows)` gives the drafter of a subset of the requests, in that order. A round that the
    token budget cuts (an answer without EOS) is left out.
    """
    done = [1] * len(prompts)
    rounds: list[list[Round]] = [[] for _ in prompts]
    alive = [i for i, a in enumerate(answers) if len(a) > 1]
    while alive:
        seeds = torch.tensor([answers[i][done[i] - 1] for i in alive])
        starts = torch.tensor([len(prompts[i]) + done[i] - 1 for i in alive])
        draft = _Draft.of(drafter(alive)(seeds, starts, block))
        following = []
        for row, i in enumerate(alive):
            rest = answers[i][done[i] :]
            one = draft.round(row, i, rest)
            done[i] += one.accepted
            finished = done[i] >= len(answers[i])
            if not finished or answers[i][-1] == EOS:
                rounds[i].append(one)
            if not finished:
                following.append(i)
        alive = following
    return rounds


class _Rows:
    """The drafter of some rows of a cache; the selection is kept while the rows stay the same."""

    def __init__(self, model: TinyModel, cache: Cache) -> None:
        self.model, self.cache = model, cache
        self.rows = list(range(len(cache[0][0])))

    def __call__(self, rows: list[int]) -> Drafter:
        if rows != self.rows:
            index = torch.tensor([self.rows.index(row) for row in rows])
            self.cache = [(k[index], v[index]) for k, v in self.cache]
            self.rows = list(rows)
        return model_drafter(self.model, self.cache)


@torch.inference_mode()
def replay(
    model: TinyModel,
    prompts: list[list[int]],
    answers: list[list[int]],
    block: int,
    batch: int = 64,
) -> list[list[Round]]:
    """Return the rounds of the model's own drafting at block size `block`, request by request."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(answers[i]))
    result: list[list[Round]] = [[] for _ in prompts]
    for low in range(0, len(order), batch):
        part = order[low : low + batch]
        texts = [prompts[i] + answers[i] for i in part]
        switch_adapter(model, len(max(texts, key=len)))
        _, cache = causal_cache(model, texts)

        played = play(
            _Rows(model, cache), [prompts[i] for i in part], [answers[i] for i in part], block
        )
        for i, rounds in zip(part, played, strict=True):
            result[i] = rounds
    return result
