"""Nemotron-Labs-Diffusion for SGLang: published names, tensor parallel, rows with a draft adapter.

Two ways through the same layers. `forward_rows` is RecGuide's: packed rows, an attention back end
that reads the row table, a head over the readouts only. `forward` is SGLang's: its ForwardBatch
and stock attention, for the fallback layouts and for plain decoding without a plugin worker.

Query temperature and YaRN come from `model.rope`, so both engines rotate by the same tables. The
draft adapter is a low-rank delta added before the all-reduce of `o_proj`, under a token mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from recguide_core.errors import DataError
from recguide_core.model.config import ModelConfig, config_from_dict
from recguide_core.model.lora import DraftAdapter
from recguide_core.model.rope import RotaryTable, rotate
from recguide_core.model.transformer import Attention, TokenBatch
from recguide_core.sglang_plugin import adapter as sgl
from recguide_core.sglang_plugin.graphs import AdapterMask
from recguide_core.sglang_plugin.model_config import ARCHITECTURE
from recguide_core.sglang_plugin.weight_names import parts_of, place_of

MASKED = float("-inf")


class NldAttention(nn.Module):  # type: ignore[misc,unused-ignore]
    """Projections of one layer; what its tokens see is the attention back end's business."""

    def __init__(self, config: ModelConfig, layer: int, quant: Any, prefix: str) -> None:
        super().__init__()
        parts, _ = sgl.tensor_parallel()
        self.heads = config.heads // parts
        self.kv_heads = max(1, config.kv_heads // parts)
        self.head_dim = config.head_dim
        self.qkv_proj = sgl.QKVParallelLinear(
            config.hidden,
            config.head_dim,
            config.heads,
            config.kv_heads,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = sgl.RowParallelLinear(
            config.heads * config.head_dim,
            config.hidden,
            bias=False,
            reduce_results=False,
            quant_config=quant,
            prefix=f"{prefix}.o_proj",
        )
        self.attn = sgl.RadixAttention(
            self.heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=self.kv_heads,
            layer_id=layer,
            prefix=f"{prefix}.attn",
        )


class NldMlp(nn.Module):  # type: ignore[misc,unused-ignore]
    """SwiGLU."""

    def __init__(self, config: ModelConfig, quant: Any, prefix: str) -> None:
        super().__init__()
        self.gate_up_proj = sgl.MergedColumnParallelLinear(
            config.hidden,
            [config.intermediate] * 2,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = sgl.RowParallelLinear(
            config.intermediate,
            config.hidden,
            bias=False,
            reduce_results=False,
            quant_config=quant,
            prefix=f"{prefix}.down_proj",
        )
        self.act = sgl.SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(x)
        out, _ = self.down_proj(self.act(gate_up))
        return out  # type: ignore[no-any-return]


class NldLayer(nn.Module):  # type: ignore[misc,unused-ignore]
    """One pre-norm block."""

    def __init__(self, config: ModelConfig, layer: int, quant: Any, prefix: str) -> None:
        super().__init__()
        self.self_attn = NldAttention(config, layer, quant, f"{prefix}.self_attn")
        self.mlp = NldMlp(config, quant, f"{prefix}.mlp")
        self.input_layernorm = sgl.RMSNorm(config.hidden, eps=config.rms_eps)
        self.post_attention_layernorm = sgl.RMSNorm(config.hidden, eps=config.rms_eps)


class NldEncoder(nn.Module):  # type: ignore[misc,unused-ignore]
    """Embedding, blocks and last norm, under their published prefix."""

    def __init__(self, config: ModelConfig, quant: Any, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = sgl.VocabParallelEmbedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(
            NldLayer(config, i, quant, f"{prefix}.layers.{i}") for i in range(config.layers)
        )
        self.norm = sgl.RMSNorm(config.hidden, eps=config.rms_eps)


class StockAttention:
    """SGLang's own attention behind the `Attention` interface."""

    def __init__(self, encoder: NldEncoder, forward_batch: Any) -> None:
        self.encoder = encoder
        self.forward_batch = forward_batch

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        block: Any = self.encoder.layers[layer]
        flat = [x.reshape(len(x), -1) for x in (q, k, v)]
        out: torch.Tensor = block.self_attn.attn(*flat, self.forward_batch)
        return out


class NemotronLabsDiffusionModel(nn.Module):  # type: ignore[misc,unused-ignore]
    """The class behind the published architecture name."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.geometry = config_from_dict(config.to_dict())
        self.encoder = NldEncoder(self.geometry, quant_config, "encoder")
        self.diffusion_head = sgl.ParallelLMHead(self.geometry.vocab, self.geometry.hidden)
        self.logits_processor = sgl.LogitsProcessor(config)
        self.adapter: DraftAdapter | None = None
        self._rotary: RotaryTable | None = None

    # -- what the plugin's worker uses ------------------------------------------------------

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.encoder.norm.weight.dtype  # type: ignore[no-any-return]

    @property
    def weight_device(self) -> torch.device:
        return self.encoder.norm.weight.device  # type: ignore[no-any-return]

    def prepare(self, positions: int, adapter: DraftAdapter | None) -> None:
        """Rotary tables for positions 0..positions-1, and this rank's part of the adapter."""
        self._rotary = RotaryTable(
            self.geometry.rope, self.geometry.head_dim, positions, self.weight_device
        )
        parts, rank = sgl.tensor_parallel()
        if adapter is not None and parts > 1:
            width = self.geometry.heads * self.geometry.head_dim // parts
            mine = slice(rank * width, (rank + 1) * width)
            adapter = DraftAdapter([d[:, mine].contiguous() for d in adapter.down], adapter.up)
        self.adapter = adapter

    def forward_rows(self, batch: TokenBatch, attention: Attention) -> torch.Tensor:
        """Final hidden states (before the last norm) of the readouts, [R, hidden]."""
        layers = self.encoder.layers
        attn_norm = layers[0].input_layernorm
        residual = self.encoder.embed_tokens(batch.tokens)
        h = attn_norm(residual)  # type: ignore[operator]
        turn = self._turns(batch.positions)
        adapter, last = batch.adapter, len(layers) - 1
        for index in range(len(layers)):
            block: Any = layers[index]
            mixed = attention.attend(index, *self._project(block.self_attn, h, *turn))
            if index == last and batch.readout is not None:
                # Nothing behind this point mixes tokens, so only readout tokens go on.
                mixed, residual = mixed[batch.readout], residual[batch.readout]
                adapter = _restrict(adapter, batch.readout)
            out, _ = block.self_attn.o_proj(mixed)
            self._add_adapter(index, mixed, out, adapter)
            out = sgl.tensor_model_parallel_all_reduce(out)
            h, residual = block.post_attention_layernorm(out, residual)
            h = sgl.tensor_model_parallel_all_reduce(block.mlp(h))
            if index < last:
                following: Any = layers[index + 1]
                h, residual = following.input_layernorm(h, residual)
        final: torch.Tensor = h + residual
        return final

    def _add_adapter(self, layer: int, x: torch.Tensor, out: torch.Tensor, tokens: Any) -> None:
        """The draft adapter's part of `out`, before the ranks' parts are summed."""
        if tokens is None or self.adapter is None:
            return
        if isinstance(tokens, AdapterMask):
            tokens.add(out, x, self.adapter.down[layer], self.adapter.up[layer], tokens.tokens)
        else:
            self.adapter.add(layer, x, out, tokens)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [R, vocab] of final hidden states [R, hidden]."""
        h = self.encoder.norm(hidden)
        logits = F.linear(h, self.diffusion_head.weight)
        if sgl.tensor_parallel()[0] > 1:
            logits = sgl.tensor_model_parallel_all_gather(logits)
        return logits[:, : self.geometry.vocab].float()

    def _turns(
        self, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """cos, signed sin [T, 1, D] and the query temperature [T, 1, 1] of packed positions."""
        if self._rotary is None:
            self.prepare(self.geometry.max_positions, None)
        rotary = self._rotary
        assert rotary is not None
        dtype = self.weight_dtype
        cos = rotary.cos[positions].unsqueeze(1).to(dtype)
        sin = rotary.sin[positions].unsqueeze(1).to(dtype)
        if rotary.temperature is None:
            return cos, sin, None
        return cos, sin, rotary.temperature[positions].view(-1, 1, 1).to(dtype)

    def _project(
        self,
        block: NldAttention,
        h: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heat: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        qkv, _ = block.qkv_proj(h)
        heads, kv = block.heads, block.kv_heads
        split = qkv.view(-1, heads + 2 * kv, block.head_dim)
        turned = rotate(split[:, : heads + kv], cos, sin)
        q, k, v = turned[:, :heads], turned[:, heads:], split[:, heads + kv :]
        return (q if heat is None else q * heat), k, v

    # -- what SGLang uses -------------------------------------------------------------------

    @torch.no_grad()
    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """SGLang's forward; MASK is no token to be sampled."""
        spec = forward_batch.spec_info
        batch = TokenBatch(input_ids, positions, getattr(spec, "adapter", None), None)
        hidden = self.forward_rows(batch, StockAttention(self.encoder, forward_batch))
        normed = self.encoder.norm(hidden)
        out = self.logits_processor(input_ids, normed, self.diffusion_head, forward_batch)
        if out.next_token_logits is not None:
            out.next_token_logits[:, self.geometry.mask_id] = MASKED
        return out

    def get_input_embeddings(self) -> Any:
        return self.encoder.embed_tokens

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take tensors by published name; q, k, v and gate, up go into fused parameters.

        Raises:
            DataError: tensors are missing.
        """
        parameters = dict(self.named_parameters())
        missing = {p for name in parameters for p in parts_of(name)}
        for name, tensor in weights:
            place = place_of(name)
            parameter = parameters.get(place.parameter)
            if parameter is None:
                continue
            load = getattr(parameter, "weight_loader", sgl.default_weight_loader)
            load(parameter, tensor, *([] if place.shard is None else [place.shard]))
            missing.discard((place.parameter, place.shard))
        if missing == {("diffusion_head.weight", None)}:
            # Some exports leave the head out and mean the embedding.
            self.diffusion_head.weight.data.copy_(self.encoder.embed_tokens.weight.data)
        elif missing:
            name, shard = min(missing, key=str)
            raise DataError(
                f"{len(missing)} tensors missing, first {name}"
                + (f" ({shard})." if shard else "."),
                "Download the checkpoint again; `recguide doctor --model PATH` lists every fault.",
            )


def _restrict(
    adapter: torch.Tensor | bool | None, readout: torch.Tensor
) -> torch.Tensor | bool | None:
    """Adapter tokens among the readout tokens, as indices into the readout."""
    if adapter is None or isinstance(adapter, bool):
        return adapter
    return torch.isin(readout, adapter).nonzero().squeeze(-1)


assert NemotronLabsDiffusionModel.__name__ == ARCHITECTURE
EntryClass = [NemotronLabsDiffusionModel]
