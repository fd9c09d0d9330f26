"""The NLD transformer over packed rows: one forward for every mode.

Pre-norm residual blocks, grouped-query attention, SwiGLU, RMSNorm, an untied `diffusion_head`.
What a token may see is the attention back end's business; this file only knows packed tokens.
The draft adapter is a low-rank delta on `o_proj`, added for the tokens of adapter rows only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from recguide_core.model.config import ModelConfig
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.products import PACK_BYTES, Product, spare_rows
from recguide_core.model.rope import RotaryTable, rotate


class Attention(Protocol):
    """Attention of one packed forward, prepared before the first layer."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, H, D], k and v [T, Hkv, D] of the packed tokens -> [T, H * D]."""


@dataclass(slots=True)
class LayerWeights:
    """Weights of one block, fused at load: qkv [(H + 2 Hkv) D, hidden], gate_up [2 F, hidden]."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(slots=True)
class Weights:
    """All tensors of a checkpoint after fusion."""

    embed: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor


@dataclass(slots=True)
class TokenBatch:
    """Device-side inputs of one forward.

    Attributes:
        tokens, positions: int64 [T].
        adapter: None (no adapter rows), True (all tokens), or int64 indices of adapter tokens.
        readout: None (all tokens) or int64 [R] indices of the tokens that need logits.
        keep_hidden: return the hidden states of all tokens, whatever is read out.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    adapter: torch.Tensor | bool | None
    readout: torch.Tensor | None
    keep_hidden: bool = False


@dataclass(slots=True)
class LayerProducts:
    """The four products of a block."""

    qkv: Product
    o: Product
    gate_up: Product
    down: Product


class Transformer:
    """Stateless forward over `Weights`; the KV cache belongs to the attention back end."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        adapter: DraftAdapter | None,
        max_positions: int,
    ) -> None:
        self.config = config
        self.weights = weights
        self.adapter = adapter
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        matrices = [m for w in weights.layers for m in (w.qkv, w.o, w.gate_up, w.down)]
        size = sum(m.numel() * m.element_size() for m in [*matrices, weights.head])
        pack = size <= PACK_BYTES
        self._products = [
            LayerProducts(*(Product(m, pack=pack) for m in (w.qkv, w.o, w.gate_up, w.down)))
            for w in weights.layers
        ]
        self._head = Product(weights.head, pack=pack)
        self._fills = any(p.qkv.blocked is not None for p in self._products)
        self.rotary = RotaryTable(config.rope, config.head_dim, max_positions, self.device)

    def forward(self, batch: TokenBatch, attention: Attention) -> torch.Tensor:
        """Final hidden states, before the last norm: [R, hidden] of the readout tokens, or
        [T, hidden] where the batch keeps all.
        """
        config, rotary = self.config, self.rotary
        tokens, positions, total = batch.tokens, batch.positions, len(batch.tokens)
        spare = spare_rows(total) if self._fills else 0
        if spare:
            tokens, positions = F.pad(tokens, (0, spare)), F.pad(positions, (0, spare))
        x = F.embedding(tokens, self.weights.embed)
        cos = rotary.cos[positions].unsqueeze(1)
        sin = rotary.sin[positions].unsqueeze(1)
        if self.dtype != torch.float32:
            cos, sin = cos.to(self.dtype), sin.to(self.dtype)
        heat = None
        if rotary.temperature is not None:
            heat = rotary.temperature[positions].view(-1, 1, 1).to(self.dtype)
        last = config.layers - 1
        for index, (layer, by) in enumerate(zip(self.weights.layers, self._products, strict=True)):
            h = F.rms_norm(x, (config.hidden,), layer.attn_norm, config.rms_eps)
            q, k, v = self._project(by.qkv(h), cos, sin, heat)
            mixed = attention.attend(index, q[:total], k[:total], v[:total])
            adapter = batch.adapter
            if index == last and batch.readout is not None and not batch.keep_hidden:
                # Nothing behind this point mixes tokens, so only readout tokens go on.
                mixed, x = mixed[batch.readout], x[batch.readout]
                adapter = _restrict(adapter, batch.readout)
                total = len(batch.readout)
            elif spare:
                mixed = F.pad(mixed, (0, 0, 0, spare))
            out = by.o(mixed)
            if adapter is not None and self.adapter is not None:
                self.adapter.add(index, mixed, out, adapter)
            x = x + out
            h = F.rms_norm(x, (config.hidden,), layer.mlp_norm, config.rms_eps)
            gate, up = by.gate_up(h).chunk(2, -1)
            x = x + by.down(F.silu(gate) * up)
        return x[:total]

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Input of the head, [R, hidden], of final hidden states [R, hidden]."""
        config = self.config
        return F.rms_norm(hidden, (config.hidden,), self.weights.norm, config.rms_eps)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocab] in float32 of final hidden states [R, hidden]."""
        return self._head(self.normed(hidden)).float()

    def _project(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heat: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self.config
        heads, kv = config.heads, config.kv_heads
        split = qkv.view(-1, heads + 2 * kv, config.head_dim)
        # Queries and keys turn by the same angles, so they are rotated in one go.
        turned = rotate(split[:, : heads + kv], cos, sin)
        q, k, v = turned[:, :heads], turned[:, heads:], split[:, heads + kv :]
        return (q if heat is None else q * heat), k, v


def _restrict(
    adapter: torch.Tensor | bool | None, readout: torch.Tensor
) -> torch.Tensor | bool | None:
    """Adapter tokens among the readout tokens, as indices into the readout."""
    if adapter is None or isinstance(adapter, bool):
        return adapter
    return torch.isin(readout, adapter).nonzero().squeeze(-1)
