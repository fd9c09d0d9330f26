"""Run hand-made rows through the engine's own packing, attention and model."""

import numpy as np
import torch

from recguide_core.engine.rows import PackedStep, pack
from recguide_core.kernels.attention_torch import PackedLayout, TorchAttention
from recguide_core.kvcache import KVPool
from recguide_core.model.registry import LoadedModel
from recguide_core.model.transformer import TokenBatch
from recguide_core.records import Row, Rows


def make_pool(model: LoadedModel, tokens: int, page_size: int = 4) -> KVPool:
    config = model.config
    return KVPool(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        tokens=tokens,
        page_size=page_size,
        device=model.transformer.device,
        dtype=model.transformer.dtype,
    )


def committed_lengths(pool: KVPool, slots: int) -> np.ndarray:
    lengths = np.zeros(slots, np.int64)
    for slot in pool._held:
        lengths[slot] = pool.committed(slot)
    return lengths


def run_rows(
    model: LoadedModel, pool: KVPool, rows: list[Row], slots: int = 16
) -> tuple[PackedStep, torch.Tensor]:
    """One forward; the step and its logits [Q, vocab]. The pool must hold room for the rows."""
    step = pack(Rows.of(rows), committed_lengths(pool, slots))
    on = step.adapter_tokens
    adapter: torch.Tensor | bool | None = None
    if on.any():
        adapter = True if on.all() else torch.from_numpy(np.flatnonzero(on))
    batch = TokenBatch(
        torch.from_numpy(step.rows.tokens),
        torch.from_numpy(step.positions),
        adapter,
        torch.from_numpy(step.readout),
    )
    layout = PackedLayout(step.slots, step.offset, step.prefix, step.vis)
    with torch.inference_mode():
        attention = TorchAttention(pool, layout, model.config.group)
        hidden = model.transformer.forward(batch, attention)
        logits = model.transformer.head(hidden)
    return step, logits.clone()


def commit_prompt(
    model: LoadedModel, pool: KVPool, slot: int, tokens: list[int], chunk: int = 0
) -> torch.Tensor:
    """Prefill a request causally, in chunks when asked; logits of all its tokens."""
    size, parts = chunk or len(tokens), []
    assert pool.reserve(slot, len(tokens))
    for first in range(0, len(tokens), size):
        piece = tokens[first : first + size]
        pool.begin(slot, len(piece))
        _, logits = run_rows(model, pool, [Row(slot, piece, first, commit=True)])
        pool.commit(slot, len(piece))
        parts.append(logits)
    return torch.cat(parts)
