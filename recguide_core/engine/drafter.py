"""Runs a step whose drafts come from a second model that reads the target's hidden states.

`DrafterExecutor` sends each row to the model that it belongs to. Any drafter that fits
`HiddenDrafter` can be used; `DFlashCache` is the one for DFlash-style checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F

from recguide_core.engine.readings import ReadoutNeeds, StepReadings
from recguide_core.engine.rows import PackedStep, split_drafter
from recguide_core.engine.runner import TorchRunner
from recguide_core.errors import RecGuideError
from recguide_core.kernels.sampling_torch import SamplingRows
from recguide_core.model.registry import LoadedModel
from recguide_core.records import BoolArray
from recguide_core.tiny.drafter import DFlashDrafter, DrafterLayer, load_drafter

DRAFTER_FOLDER = "dflash_drafter"


class HiddenDrafter(Protocol):
    """A block drafter over hidden states, with its own cache by slot."""

    def extend(self, slot: int, start: int, hidden: torch.Tensor) -> None:
        """Hidden states [n, target hidden] of positions start.. of a request.

        What was known from `start` on is replaced, so rejected tokens never stay.
        """

    def draft(self, slot: int, seed: int, start: int, block: int) -> torch.Tensor:
        """Draft logits float32 [block, vocab]: slot j predicts position start + j, slot 0 is the
        seed. Reads positions [0, start) only.
        """


class DFlashCache:
    """A `DFlashDrafter` with the keys and values of its context kept from round to round."""

    def __init__(self, drafter: DFlashDrafter, mask_id: int) -> None:
        self.drafter = drafter.eval()
        self.layers = [cast(DrafterLayer, layer) for layer in drafter.layers]
        self.mask_id = mask_id
        self._held: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def extend(self, slot: int, start: int, hidden: torch.Tensor) -> None:
        net = self.drafter
        features = net.hidden_norm(net.fc(hidden))[None]
        where = torch.arange(start, start + len(hidden), device=hidden.device)
        cos, sin = net.cos[where], net.sin[where]
        new = [layer.self_attn.project(features, cos, sin)[1:] for layer in self.layers]
        old = self._held.get(slot)
        if start == 0 or old is None:
            self._held[slot] = new
            return
        self._held[slot] = [
            (torch.cat((k[:, :, :start], kn), 2), torch.cat((v[:, :, :start], vn), 2))
            for (k, v), (kn, vn) in zip(old, new, strict=True)
        ]

    def draft(self, slot: int, seed: int, start: int, block: int) -> torch.Tensor:
        net, held = self.drafter, self._held[slot]
        tokens = torch.full((1, block), self.mask_id, device=net.embedding.device)
        tokens[0, 0] = seed
        cos, sin = net.cos[start : start + block], net.sin[start : start + block]
        x = F.embedding(tokens, net.embedding)
        for layer, (k, v) in zip(self.layers, held, strict=True):
            attn = layer.self_attn
            q, kb, vb = attn.project(layer.input_layernorm(x), cos, sin)
            keys = attn.spread(torch.cat((k[:, :, :start], kb), 2))
            values = attn.spread(torch.cat((v[:, :, :start], vb), 2))
            x = x + attn.output(F.scaled_dot_product_attention(q, keys, values))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return net.logits(net.norm(x))[0].float()


def load_dflash(model: LoadedModel) -> DFlashCache:
    """The drafter that lies beside a model.

    Raises:
        RecGuideError: the model ships none.
    """
    folder = None if model.folder is None else model.folder / DRAFTER_FOLDER
    if folder is None or not folder.is_dir():
        raise RecGuideError(
            f"{model.name} has no drafter, and the method 'dflash' needs one.",
            f"Put a DFlash checkpoint into the model's folder as {Path(DRAFTER_FOLDER)}/, or "
            "leave the method out.",
        )
    drafter = load_drafter(folder, model.transformer.weights.embed.float())
    return DFlashCache(drafter, model.config.mask_id)


class DrafterExecutor:
    """Target rows through the runner, drafter rows through the drafter, readings merged."""

    def __init__(self, runner: TorchRunner, drafter: HiddenDrafter) -> None:
        self.runner = runner
        self.drafter = drafter

    def execute(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        needs.hidden = True
        target, drafts, theirs = split_drafter(step)
        with torch.inference_mode():
            parts = []
            if target is not None:
                mine = self.runner.execute(target, needs)
                self._remember(target, mine.hidden)
                mine.hidden = None
                parts.append((~theirs, mine))
            if drafts is not None:
                parts.append((theirs, self._draft(drafts, needs)))
        return parts[0][1] if len(parts) == 1 else _merge(parts)

    def _remember(self, step: PackedStep, hidden: torch.Tensor) -> None:
        for row in np.flatnonzero(step.rows.commit).tolist():
            first, last = step.row_start[row : row + 2].tolist()
            self.drafter.extend(
                int(step.rows.request[row]), int(step.rows.start[row]), hidden[first:last]
            )

    def _draft(self, step: PackedStep, needs: ReadoutNeeds) -> StepReadings:
        rows = step.rows
        logits = [
            self.drafter.draft(
                int(rows.request[i]),
                int(rows.tokens[step.row_start[i]]),
                int(rows.start[i]),
                int(rows.length[i]),
            )
            for i in range(len(rows.length))
        ]
        sampling: SamplingRows | None = self.runner.sampling_rows(step, needs)
        return self.runner.read(torch.cat(logits), step, needs, sampling)


def _merge(parts: Sequence[tuple[BoolArray, StepReadings]]) -> StepReadings:
    """Readings of both models in the step's own order; top alternatives follow their rows."""
    total = len(parts[0][0])
    asked = any(part.logprob is not None for _, part in parts)
    out = StepReadings(
        token=np.empty(total, np.int64),
        alt=np.empty(total, np.int64),
        confidence=np.empty(total, np.float32),
        margin=np.empty(total, np.float32),
        entropy=np.empty(total, np.float32),
        logprob=np.full(total, np.nan, np.float32) if asked else None,
    )
    for where, part in parts:
        for name in ("token", "alt", "confidence", "margin", "entropy"):
            getattr(out, name)[where] = getattr(part, name)
        if out.logprob is not None and part.logprob is not None:
            out.logprob[where] = part.logprob
        place = np.flatnonzero(where)
        out.top.update({int(place[row]): top for row, top in part.top.items()})
    return out
