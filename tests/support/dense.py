"""A second implementation of the model: one sequence, an explicit mask, published tensor names.

Shares nothing with `recguide_core` and takes the long way everywhere: no cache, no fused weights,
repeated K/V, softmax written out. `row_logits` states the one attention rule as such a mask.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def inverse_frequencies(rope: Mapping[str, Any], dim: int) -> torch.Tensor:
    """Plain or YaRN frequencies, pair by pair."""
    theta, out = rope["rope_theta"], []
    for pair in range(dim // 2):
        plain = theta ** (-2 * pair / dim)
        if rope["rope_type"] == "yarn":
            original = rope["original_max_position_embeddings"]

            def pair_at(turns: float, original: int = original) -> float:
                return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

            low = max(math.floor(pair_at(rope["beta_fast"])), 0)
            high = min(math.ceil(pair_at(rope["beta_slow"])), dim - 1)
            share = min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0)
            plain = (1 - share) * plain + share * plain / rope["factor"]
        out.append(plain)
    return torch.tensor(out, dtype=torch.float32)


def _rotated(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Rotation of [T, heads, D] as complex numbers, first half real, second half imaginary."""
    half = x.shape[-1] // 2
    angle = (positions.float()[:, None] * frequencies).double()
    turn = torch.polar(torch.ones_like(angle), angle)[:, None, :]
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    return torch.cat((z.real, z.imag), -1).to(x.dtype)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def dense_logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    tokens: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    adapter: Mapping[str, torch.Tensor] | None = None,
    adapter_on: torch.Tensor | None = None,
    scale: float = 4.0,
) -> torch.Tensor:
    """Logits [T, vocab] of one sequence.

    Args:
        mask: bool [T, T], True where query i sees key j.
        adapter: PEFT tensors; adapter_on: bool [T], the tokens whose o_proj carries the delta.
    """
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim, eps = config["head_dim"], config["rms_norm_eps"]
    rope = config["rope_parameters"]
    frequencies = inverse_frequencies(rope, dim)
    x = tensors["encoder.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):

        def weight(name: str, i: int = i) -> torch.Tensor:
            return tensors[f"encoder.layers.{i}.{name}.weight"]

        h = _norm(x, weight("input_layernorm"), eps)
        q = (h @ weight("self_attn.q_proj").T).view(-1, heads, dim)
        k = (h @ weight("self_attn.k_proj").T).view(-1, kv_heads, dim)
        v = (h @ weight("self_attn.v_proj").T).view(-1, kv_heads, dim)
        q, k = _rotated(q, positions, frequencies), _rotated(k, positions, frequencies)
        if rope.get("llama_4_scaling_beta"):
            steps = torch.floor(positions / rope["original_max_position_embeddings"])
            q = q * (1 + rope["llama_4_scaling_beta"] * torch.log(1 + steps))[:, None, None]
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        score = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
        share = score.masked_fill(~mask, -math.inf).softmax(-1)
        mixed = torch.einsum("hij,jhd->ihd", share, v).reshape(len(tokens), heads * dim)
        out = mixed @ weight("self_attn.o_proj").T
        if adapter is not None and adapter_on is not None:
            base = f"base_model.model.encoder.layers.{i}.self_attn.o_proj."
            low = mixed @ adapter[base + "lora_A.weight"].T
            delta = scale * (low @ adapter[base + "lora_B.weight"].T)
            out = out + delta * adapter_on[:, None]
        x = x + out
        h = _norm(x, weight("post_attention_layernorm"), eps)
        gate = h @ weight("mlp.gate_proj").T
        up = h @ weight("mlp.up_proj").T
        x = x + (gate * torch.sigmoid(gate) * up) @ weight("mlp.down_proj").T
    head = tensors.get("diffusion_head.weight", tensors["encoder.embed_tokens.weight"])
    return _norm(x, tensors["encoder.norm.weight"], eps) @ head.T


def row_logits(
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    adapter: Mapping[str, torch.Tensor] | None,
    prefix: Sequence[int],
    parent: Sequence[int],
    own: Sequence[int],
    *,
    bidirectional: bool,
    adapter_on: bool,
) -> torch.Tensor:
    """Logits [len(own), vocab] of one row by the rule: prefix, the visible parent part, itself.

    The prefix and the parent part are causal and without adapter, whatever the row is.
    """
    before = len(prefix) + len(parent)
    total = before + len(own)
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    if bidirectional:
        mask[before:, before:] = True
    on = torch.zeros(total, dtype=torch.bool)
    on[before:] = adapter_on
    tokens = torch.tensor([*prefix, *parent, *own])
    logits = dense_logits(
        config, tensors, tokens, torch.arange(total), mask, adapter, on if adapter else None
    )
    return logits[before:]
