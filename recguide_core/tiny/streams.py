"""Batches for the joint objective: a clean causal stream and a noised block stream.

Blocks of one size tile the answer from a random offset. A noised block sees the clean text before
it and itself in both directions (Nemotron-Labs-Diffusion, training objective; `nld` dual stream),
so one forward trains AR and drafting. Knows no network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recguide_core.tiny.network import EOS, MASK
from recguide_core.tiny.token_file import Example, Use


@dataclass(frozen=True)
class Noise:
    """How answers are cut into blocks and hidden.

    `seed_share`: blocks as drafting sees them, first token known, all others MASK.
    `blank_share`: all MASK, as a continuation branch. The rest gets a random mask ratio.
    `decay`: weight of slot k is decay**k. `fill_weight`: weight of EOS targets that fill up the
    last block of a finished text. `prompt_weight`: weight of the AR loss inside the prompt.
    `avoid_weight`: weight of a token that an answer to avoid repeats.
    """

    sizes: tuple[int, ...] = (8, 16, 32)
    seed_share: float = 0.8
    blank_share: float = 0.08
    decay: float = 0.98
    fill_weight: float = 0.15
    prompt_weight: float = 0.1
    avoid_weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """One dual-stream batch; T clean and S noised columns.

    tokens, positions, targets: int64 [n, T + S]. start: int32 [n, S], first position of a noised
    token's block; block: int32 [n, S], its number, -1 for padding. ar_weight: float32 [n, T],
    below zero where the target is to be avoided; draft_weight: float32 [n, S].
    """

    tokens: Tensor
    positions: Tensor
    targets: Tensor
    start: NDArray[np.int32]
    block: NDArray[np.int32]
    ar_weight: Tensor
    draft_weight: Tensor

    @property
    def clean(self) -> int:
        """Length T of the clean stream."""
        return self.ar_weight.shape[1]

    def mask(self, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Additive attention mask [n, 1, S, T + S] of the noised queries.

        A query sees clean positions before its block's start and the tokens of its own block.
        Padding forms a block of its own, so that no row is empty.
        """
        before = np.arange(self.clean)[None, None, :] < self.start[:, :, None]
        inside = self.block[:, :, None] == self.block[:, None, :]
        seen = torch.from_numpy(np.concatenate([before, inside], 2))[:, None]
        return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))


def batches(examples: Sequence[Example], seed: int, epoch: int, size: int) -> list[list[int]]:
    """Return one epoch of batches of similar length, `size` padded tokens each at most."""
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(examples))
    result: list[list[int]] = []
    for low in range(0, len(order), 768):
        chunk = sorted(order[low : low + 768], key=lambda i: len(examples[i].tokens))
        current: list[int] = []
        for index in chunk:
            if current and len(examples[index].tokens) * (len(current) + 1) > size:
                result.append(current)
                current = []
            current.append(int(index))
        result.append(current)
    return [result[i] for i in rng.permutation(len(result))]


def schedule(examples: Sequence[Example], seed: int, size: int, skip: int) -> Iterator[list[int]]:
    """Yield batches of all epochs, beginning with batch number `skip`."""
    epoch = 0
    while True:
        epoch_batches = batches(examples, seed, epoch, size)
        yield from epoch_batches[skip:]
        skip = max(0, skip - len(epoch_batches))
        epoch += 1


def circling(answer: Sequence[int], gram: int = 4, seen: int = 2) -> NDArray[np.bool_]:
    """Return which tokens end a 4-gram that the answer has had twice before, bool [n]."""
    counts: dict[tuple[int, ...], int] = {}
    marked = np.zeros(len(answer), bool)
    for end in range(gram, len(answer) + 1):
        key = tuple(answer[end - gram : end])
        marked[end - 1] = counts.get(key, 0) >= seen
        counts[key] = counts.get(key, 0) + 1
    return marked


def _edges(first: int, last: int, size: int, rng: np.random.Generator) -> list[int]:
    """Cut [first, last) into blocks of `size` after a first one of random length."""
    offset = first + int(rng.integers(0, size))
    inner = range(offset if offset > first else first + size, last, size)
    return [first, *inner, last]


def _hidden(length: int, noise: Noise, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which tokens of a block become MASK."""
    draw = rng.random()
    hidden = np.ones(length, bool)
    if draw < noise.seed_share:
        hidden[0] = False
    elif draw >= noise.seed_share + noise.blank_share:
        hidden = rng.random(length) < rng.random()
        if rng.random() < 0.7:
            hidden[0] = False
    return hidden


def build(
    rows: Sequence[Example], noise: Noise, rng: np.random.Generator, block_share: float = 1.0
) -> Batch:
    """Return the dual-stream batch of some examples.

    A share `block_share` of each answer's blocks, drawn at random, takes part in the noised stream:
    below one, a step is cheaper and the AR loss sees more text in the same time.
    """
    n = len(rows)
    T = -(-max(len(r.tokens) for r in rows) // 16) * 16
    longest = max(len(r.tokens) - r.prompt for r in rows) + max(noise.sizes)
    S = -(-longest // 16) * 16
    tokens, positions = np.zeros((2, n, T + S), np.int64)
    targets = np.zeros((n, T + S), np.int64)
    block = np.full((n, S), -1, np.int32)
    start = np.zeros((n, S), np.int32)
    ar_weight, draft_weight = np.zeros((n, T), np.float32), np.zeros((n, S), np.float32)
    for r, row in enumerate(rows):
        text, length = row.tokens, len(row.tokens)
        tokens[r, :length] = text
        positions[r, :length] = np.arange(length)
        targets[r, : length - 1] = text[1:]
        if row.use is Use.AVOID:
            ar_weight[r, row.prompt - 1 : length - 1] = -noise.avoid_weight * circling(
                text[row.prompt :].tolist()
            )
        elif row.use is not Use.DRAFT_ONLY:
            ar_weight[r, : row.prompt - 1] = noise.prompt_weight
            ar_weight[r, row.prompt - 1 : length - 1] = 1.0
        if row.use in (Use.AR_ONLY, Use.AVOID):
            continue
        size = int(rng.choice(noise.sizes))
        edges = _edges(row.prompt, length, size, rng)
        kept = rng.permutation(len(edges) - 1)[: max(1, round((len(edges) - 1) * block_share))]
        column = 0
        for number, (low, high) in enumerate(pairwise(edges)):
            answer = text[low:high]
            if high == length and text[-1] == EOS:
                answer = np.concatenate([answer, np.full(size - len(answer), EOS)])
            k = len(answer)
            if k == 0 or number not in kept:
                continue
            hidden = _hidden(k, noise, rng)
            here = slice(column, column + k)
            tokens[r, T + column : T + column + k] = np.where(hidden, MASK, answer)
            positions[r, T + column : T + column + k] = low + np.arange(k)
            targets[r, T + column : T + column + k] = answer
            block[r, here], start[r, here] = number, low
            fill = np.where(np.arange(k) < high - low, 1.0, noise.fill_weight)
            draft_weight[r, here] = hidden * noise.decay ** np.arange(k) * fill
            column += k
    used = max(16, -(-int((block >= 0).sum(1).max()) // 16) * 16)
    return Batch(
        torch.from_numpy(tokens[:, : T + used]),
        torch.from_numpy(positions[:, : T + used]),
        torch.from_numpy(targets[:, : T + used]),
        start[:, :used],
        block[:, :used],
        torch.from_numpy(ar_weight),
        torch.from_numpy(draft_weight[:, :used]),
    )
