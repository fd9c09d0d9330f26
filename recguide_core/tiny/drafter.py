"""A DFlash-style drafter: a small block-diffusion network that reads the target's hidden states.

The drafter has no KV of its own text: every layer attends to keys and values projected from the
target's final hidden states of the committed tokens, and to the block itself in both directions
(DFlash, z-lab; tensor names `fc`, `hidden_norm`, `layers.*`, `norm` follow it). Embedding and head
are the target's and are not stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recguide_core.errors import DataError
from recguide_core.tiny.network import MASK, MLP, Attention, RMSNorm, Shape


@dataclass(frozen=True)
class DrafterShape:
    """`target_hidden_size` is the width of the hidden states; the rest as in `config.json`."""

    target_hidden_size: int = 256
    num_hidden_layers: int = 2
    hidden_size: int = 256
    intermediate_size: int = 512
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    vocab_size: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048

    def network(self) -> Shape:
        """Return the same sizes as the target's record, for the shared building blocks."""
        keys = asdict(self)
        keys.pop("target_hidden_size")
        return Shape(**keys)


class DrafterLayer(nn.Module):
    """A transformer layer whose keys and values come from the context and from the block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, context: Tensor, cos: Tensor, sin: Tensor, split: int, mask: Tensor
    ) -> Tensor:
        """Map block states x [n, s, hidden]; `cos`, `sin` cover context (`split` columns),
        block.
        """
        attn = self.self_attn
        both = torch.cat([context, self.input_layernorm(x)], 1)
        q, k, v = attn.project(both, cos, sin)
        heads = F.scaled_dot_product_attention(
            q[:, :, split:], attn.spread(k), attn.spread(v), attn_mask=mask
        )
        x = x + attn.output(heads)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlashDrafter(nn.Module):
    """The drafter; `embedding` [vocab, hidden] is the target's and is not trained."""

    cos: Tensor
    sin: Tensor
    embedding: Tensor

    def __init__(self, shape: DrafterShape, embedding: Tensor) -> None:
        super().__init__()
        self.shape = shape
        network = shape.network()
        self.fc = nn.Linear(shape.target_hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(network) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.register_buffer("embedding", embedding.detach().clone(), persistent=False)
        half = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        angle = torch.outer(
            torch.arange(shape.max_position_embeddings).float(), shape.rope_theta**-half
        )
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, context: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Return hidden states [n, s, hidden] of block tokens.

        Args:
            context: the target's final hidden states (input of its head) [n, t, target hidden], the
                state of position i in column i.
            tokens: int64 [n, s], seed and MASK.
            positions: int64 [n, s] of the block tokens.
            mask: bool or additive, [n, 1, s, t + s]: which context columns and block tokens a block
                token sees.
        """
        n, t = context.shape[:2]
        features = self.hidden_norm(self.fc(context))
        places = torch.cat([torch.arange(t, device=tokens.device).expand(n, t), positions], 1)
        cos, sin = self.cos[places][:, None], self.sin[places][:, None]
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, features, cos, sin, t, mask)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [..., hidden] to logits [..., vocab] with the target's head."""
        return F.linear(hidden, self.embedding.to(hidden.dtype))

    @torch.inference_mode()
    def draft(self, context_hidden: Tensor, seed_token: int, start_pos: int, B: int) -> Tensor:
        """Return draft logits [B, vocab] of one request.

        Slot 0 belongs to the seed and is never drafted; the argmax of slot j is the draft token for
        position `start_pos + j` (unshifted, as in the target's own drafts).

        Args:
            context_hidden: [N, target hidden], final hidden states of the committed tokens
                0..N-1, N = start_pos: the seed itself is not committed yet.
            seed_token: newest token, at position `start_pos`.
            start_pos: P, the number of committed tokens.
            B: block size.

        Raises:
            DataError: the context does not cover exactly the committed tokens.
        """
        if context_hidden.shape != (start_pos, self.shape.target_hidden_size):
            raise DataError(
                f"Hidden states of shape {tuple(context_hidden.shape)} do not fit position "
                f"{start_pos}.",
                f"Give [{start_pos}, {self.shape.target_hidden_size}].",
            )
        tokens = torch.full((1, B), MASK)
        tokens[0, 0] = seed_token
        positions = start_pos + torch.arange(B)[None]
        mask = torch.ones(1, 1, B, start_pos + B, dtype=torch.bool)
        return self.logits(self(context_hidden[None], tokens, positions, mask))[0]


def save_drafter(folder: Path, drafter: DFlashDrafter, target_sha256: str) -> None:
    """Write `config.json` and `model.safetensors` (bfloat16) to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: w.detach().cpu().bfloat16().contiguous() for n, w in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["DFlashDrafter"],
        "model_type": "dflash_drafter",
        **asdict(drafter.shape),
        "mask_token_id": MASK,
        "hidden_states": "final",
        "target_sha256": target_sha256,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def load_drafter(folder: Path, embedding: Tensor) -> DFlashDrafter:
    """Read a drafter in float32; `embedding` [vocab, hidden] is the target's.

    Raises:
        DataError: the files are missing or do not fit each other.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        shape = DrafterShape(**{n: config[n] for n in DrafterShape.__dataclass_fields__})
        drafter = DFlashDrafter(shape, embedding)
        tensors = load_file(folder / "model.safetensors")
        drafter.load_state_dict({n: w.float() for n, w in tensors.items()})
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"No usable drafter in {folder}: {error}.",
            "Train one with `python -m recguide_core.tiny.train_drafter`.",
        ) from error
    return drafter
