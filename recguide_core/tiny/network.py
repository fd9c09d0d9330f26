"""The network of nld-tiny as a training module: one forward over a clean and a noised stream.

Parameter names are the published tensor names, so a state dict is an exported file (head tied to
the embedding here, stored as its own tensor there). Knows no data and no optimiser.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recguide_core.errors import DataError

PAD, BOS, EOS, MASK, USER, ASSISTANT = range(6)

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the names are those of `config.json`."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048

    @staticmethod
    def read(folder: Path) -> Shape:
        """Return the sizes in `folder/config.json`.

        Raises:
            DataError: no such file, or a key is missing.
        """
        try:
            config = json.loads((folder / "config.json").read_text())
            theta = config["rope_parameters"]["rope_theta"]
            names = [n for n in Shape.__dataclass_fields__ if n != "rope_theta"]
            return Shape(**{n: config[n] for n in names}, rope_theta=theta)
        except (OSError, KeyError, ValueError) as error:
            raise DataError(
                f"No usable config.json in {folder}: {error}.",
                "Give a folder written by `python -m recguide_core.tiny.export`.",
            ) from error


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split form; `x` [..., head_dim], `cos`, `sin` [..., head_dim /
    2].
    """
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    """Projections of grouped-query attention; who sees whom is the caller's business."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s, self.shape = shape, shape
        self.q_proj = nn.Linear(s.hidden_size, s.num_attention_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.num_attention_heads * s.head_dim, s.hidden_size, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q [n, heads, t, head_dim] and k, v [n, kv heads, t, head_dim]."""
        s = self.shape
        q = self.q_proj(x).unflatten(-1, (s.num_attention_heads, s.head_dim)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (s.num_key_value_heads, s.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (s.num_key_value_heads, s.head_dim)).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def spread(self, x: Tensor) -> Tensor:
        """Repeat KV heads so that every query head has its own."""
        return x.repeat_interleave(
            self.shape.num_attention_heads // self.shape.num_key_value_heads, dim=1
        )

    def output(self, heads: Tensor) -> Tensor:
        """Merge the heads and project back to the residual stream."""
        projected: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., hidden] to [..., hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def dual(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, clean: int) -> Tensor:
        """Both streams: the first `clean` tokens causally, the others under `mask`."""
        attn = self.self_attn
        q, k, v = attn.project(self.input_layernorm(x), cos, sin)
        k, v = attn.spread(k), attn.spread(v)
        causal = F.scaled_dot_product_attention(
            q[:, :, :clean], k[:, :, :clean], v[:, :, :clean], is_causal=True
        )
        noised = F.scaled_dot_product_attention(q[:, :, clean:], k, v, attn_mask=mask)
        x = x + attn.output(torch.cat([causal, noised], 2))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def cached(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Query tokens over a cache; return the output and the new tokens' k, v."""
        attn = self.self_attn
        q, k, v = attn.project(self.input_layernorm(x), cos, sin)
        keys, values = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        heads = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        x = x + attn.output(heads)
        return x + self.mlp(self.post_attention_layernorm(x)), (k, v)


class Encoder(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class TinyModel(nn.Module):
    """nld-tiny: `diffusion_head` is tied to the embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape)
        half = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        angle = torch.outer(
            torch.arange(shape.max_position_embeddings).float(), shape.rope_theta**-half
        )
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = 0.5 if ("o_proj" in name or "down_proj" in name) else 1.0
                std = 0.02 if "embed" in name else scale / weight.shape[1] ** 0.5
                nn.init.normal_(weight, std=std)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, clean: int) -> Tensor:
        """Return hidden states [n, t, hidden] of the dual stream.

        Args:
            tokens, positions: int64 [n, t], the clean stream in the first `clean` columns.
            mask: additive [n, 1, t - clean, t] for the noised stream's queries.
            clean: length of the clean stream.
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.encoder.embed_tokens(tokens)
        for layer in self.encoder.layers:
            assert isinstance(layer, Layer)
            x = layer.dual(x, cos, sin, mask, clean)
        out: Tensor = self.encoder.norm(x)
        return out

    def step(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, past: Cache
    ) -> tuple[Tensor, Cache]:
        """Return hidden states [n, q, hidden] of query tokens over a cache, and their k, v.

        Args:
            tokens, positions: int64 [n, q].
            mask: bool [n, 1, q, past + q], True where a query may look.
            past: per layer k, v [n, kv heads, past, head_dim].
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.encoder.embed_tokens(tokens)
        new: Cache = []
        for layer, kv in zip(self.encoder.layers, past, strict=True):
            assert isinstance(layer, Layer)
            x, kv_new = layer.cached(x, cos, sin, mask, kv)
            new.append(kv_new)
        return self.encoder.norm(x), new

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., hidden] to logits [..., vocab]."""
        return F.linear(hidden, self.encoder.embed_tokens.weight)
