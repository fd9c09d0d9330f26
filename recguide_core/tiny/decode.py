"""Batched greedy decoding of nld-tiny, for its own answers and its card.

Independent of the engine: a plain cache whose slot is the position, right-padded prompts, MASK
never chosen. Arithmetic is the model's dtype (float32 for the card).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recguide_core.tiny.network import EOS, MASK, PAD, Cache, Layer, TinyModel


def padded(texts: list[list[int]], width: int | None = None) -> Tensor:
    """Return int64 [n, width] with PAD on the right; `width` defaults to the longest text."""
    width = width or max(len(t) for t in texts)
    return torch.tensor([t + [PAD] * (width - len(t)) for t in texts])


def choose(logits: Tensor) -> Tensor:
    """Return the greedy token of logits [..., vocab]; MASK is excluded, ties go to the lowest
    id.
    """
    logits = logits.clone()
    logits[..., MASK] = float("-inf")
    return logits.argmax(-1)


@torch.inference_mode()
def causal_cache(model: TinyModel, texts: list[list[int]], room: int = 0) -> tuple[Tensor, Cache]:
    """Run texts causally; return hidden states [n, width, hidden] and the cache.

    The cache holds `room` more slots than the longest text; k, v are [n, kv heads, slots,
    head_dim]. Slots past a text's end hold padding that no later query may look at.
    """
    tokens = padded(texts)
    n, width = tokens.shape
    s = model.shape
    empty = torch.zeros(n, s.num_key_value_heads, 0, s.head_dim)
    mask = torch.ones(width, width, dtype=torch.bool).tril()[None, None]
    positions = torch.arange(width).expand(n, width)
    hidden, new = model.step(tokens, positions, mask, [(empty, empty)] * s.num_hidden_layers)
    return hidden, [(F.pad(k, (0, 0, 0, room)), F.pad(v, (0, 0, 0, room))) for k, v in new]


def _append(model: TinyModel, tokens: Tensor, at: Tensor, cache: Cache) -> Tensor:
    """Feed one token per row at position `at` [n], write its k, v; return hidden [n, hidden]."""
    rows = torch.arange(len(at))
    width = int(at.max()) + 1
    seen = (torch.arange(width)[None] <= at[:, None])[:, None, None]
    cos, sin = model.cos[at][:, None, None], model.sin[at][:, None, None]
    x = model.encoder.embed_tokens(tokens)[:, None]
    for layer, (keys, values) in zip(model.encoder.layers, cache, strict=True):
        assert isinstance(layer, Layer)
        attn = layer.self_attn
        q, k, v = attn.project(layer.input_layernorm(x), cos, sin)
        keys[rows, :, at], values[rows, :, at] = k[:, :, 0], v[:, :, 0]
        heads = F.scaled_dot_product_attention(
            q,
            keys[:, :, :width],
            values[:, :, :width],
            attn_mask=seen,
            enable_gqa=True,
        )
        x = x + attn.output(heads)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    hidden: Tensor = model.encoder.norm(x)[:, 0]
    return hidden


@torch.inference_mode()
def greedy_batch(model: TinyModel, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Return the greedy answer of each prompt, at most `new_tokens` long, ended by EOS if it
    ends.
    """
    hidden, cache = causal_cache(model, prompts, room=new_tokens)
    at = torch.tensor([len(p) for p in prompts])
    token = choose(model.logits(hidden[torch.arange(len(prompts)), at - 1]))
    answers = [[int(t)] for t in token]
    alive = [i for i, answer in enumerate(answers) if answer[-1] != EOS]
    row_of = list(range(len(prompts)))
    for step in range(new_tokens - 1):
        if len(alive) < 0.75 * len(row_of) or (step == 0 and len(alive) < len(row_of)):
            keep = torch.tensor([row_of.index(i) for i in alive], dtype=torch.long)
            cache = [(k[keep], v[keep]) for k, v in cache]
            token, at, row_of = token[keep], at[keep], list(alive)
        if not alive:
            break
        token = choose(model.logits(_append(model, token, at, cache)))
        at = at + 1
        living = set(alive)
        for row, index in enumerate(row_of):
            if index in living:
                answers[index].append(int(token[row]))
        alive = [i for i in alive if answers[i][-1] != EOS]
    return answers


def greedy(
    model: TinyModel, prompts: list[list[int]], new_tokens: int = 480, batch: int = 64
) -> list[list[int]]:
    """Return greedy answers in the order of `prompts`, decoded in batches of similar length."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers: list[list[int]] = [[] for _ in prompts]
    for low in range(0, len(order), batch):
        part = order[low : low + batch]
        results = greedy_batch(model, [prompts[i] for i in part], new_tokens)
        for index, answer in zip(part, results, strict=True):
            answers[index] = answer
    return answers
