"""Train nld-tiny: `python -m recguide_core.tiny.train --stage joint --token-file F --out FOLDER`.

One forward over a clean and a noised stream gives loss = AR + w * masked CE (`streams.py`). A run
is a function of recipe, token file, start weights and seed: the noise of a step depends on its
number only, so a resumed run takes the steps that an unbroken one would have taken.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recguide_core.errors import DataError
from recguide_core.tiny.export import read_weights
from recguide_core.tiny.lora import add_adapter, switch_adapter
from recguide_core.tiny.network import Shape, TinyModel
from recguide_core.tiny.optimizer import MuonAdamW
from recguide_core.tiny.recipe import DEFAULT_RECIPE, Recipe, Stage, read_recipe
from recguide_core.tiny.streams import Batch, Noise, build, schedule
from recguide_core.tiny.text import WEIGHTS
from recguide_core.tiny.token_file import Example, read_examples

log = logging.getLogger(__name__)


def losses(model: TinyModel, forward: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the AR loss and the drafting loss, nats per weighted token."""
    device = model.cos.device
    clean = batch.clean
    switch_adapter(model, clean)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        hidden = forward(
            batch.tokens.to(device), batch.positions.to(device), batch.mask().to(device), clean
        )
        result = []
        for weight, part in (
            (batch.ar_weight, slice(None, clean)),
            (batch.draft_weight, slice(clean, None)),
        ):
            used = (weight != 0).to(device)
            w = weight.to(device)[used]
            target = batch.targets[:, part].to(device)[used]
            logits = model.logits(hidden[:, part][used]).float()
            loss = F.cross_entropy(logits, target, reduction="none")
            loss = torch.where(w > 0, loss, unlikelihood(loss))
            result.append((loss * w.abs()).sum() / w.abs().sum().clamp(min=1e-6))
    return result[0], result[1]


def unlikelihood(cross_entropy: Tensor) -> Tensor:
    """Return -log(1 - p) of targets with -log p (Welleck et al., 2019), bounded where p is one."""
    return -torch.log1p(-torch.exp(-cross_entropy).clamp(max=0.999))


class Run:
    """A training run with its position: model, optimiser, step and clean tokens seen."""

    def __init__(
        self, model: TinyModel, stage: Stage, noise: Noise, examples: list[Example]
    ) -> None:
        self.model, self.stage, self.noise, self.examples = model, stage, noise, examples
        self.optimizer = MuonAdamW(model.named_parameters())
        self.step = 0
        self.seen = 0

    def advance(self, forward: Any, rows: list[int]) -> tuple[float, float]:
        """Take one step on the documents `rows`; return both losses."""
        rng = np.random.default_rng((self.stage.seed, self.step))
        batch = build([self.examples[i] for i in rows], self.noise, rng, self.stage.block_share)
        ar, draft = losses(self.model, forward, batch)
        adapter_only = self.stage.rank > 0
        loss = draft if adapter_only else ar + self.stage.draft_weight * draft
        loss.backward()  # type: ignore[no-untyped-call]
        rate = self.stage.rate(self.step, self.seen)
        self.optimizer.step(self.stage.muon_rate * rate, self.stage.adam_rate * rate)
        self.step += 1
        self.seen += sum(len(self.examples[i].tokens) for i in rows)
        return ar.item(), draft.item()

    def save(self, folder: Path) -> None:
        """Write the checkpoint, whole."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seen": self.seen,
        }
        torch.save(state, folder / "checkpoint.part")
        (folder / "checkpoint.part").replace(folder / "checkpoint.pt")

    def resume(self, folder: Path) -> None:
        """Take over the checkpoint in `folder`."""
        state = torch.load(folder / "checkpoint.pt", map_location=self.model.cos.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seen = state["step"], state["seen"]

    def finish(self, folder: Path, forward: Any, minutes: float, steps: int | None = None) -> None:
        """Train to the end of the stage (or for `steps` more), with a checkpoint every
        `minutes`.
        """
        began = saved = time.monotonic()
        stop = None if steps is None else self.step + steps
        first, first_step = self.seen, self.step
        ar_mean = draft_mean = 0.0
        for rows in schedule(self.examples, self.stage.seed, self.stage.batch_tokens, self.step):
            if self.seen >= self.stage.tokens or self.step == stop:
                break
            ar, draft = self.advance(forward, rows)
            ar_mean, draft_mean = 0.95 * ar_mean + 0.05 * ar, 0.95 * draft_mean + 0.05 * draft
            if self.step % 20 == 0:
                now = time.monotonic()
                part = 1.0 - 0.95 ** (self.step - first_step)
                line = {
                    "step": self.step,
                    "tokens": self.seen,
                    "ar_loss": round(ar_mean / part, 4),
                    "draft_loss": round(draft_mean / part, 4),
                    "tokens_per_s": round((self.seen - first) / (now - began)),
                }
                log.info("%s", json.dumps(line))
                if now - saved > 60 * minutes:
                    self.save(folder)
                    saved = now
        self.save(folder)


def start(folder: Path, device: str) -> TinyModel:
    """Return the network with the weights of an exported folder.

    Raises:
        DataError: the folder holds no such weights.
    """
    model = TinyModel(Shape.read(folder))
    model.load_state_dict(read_weights(folder))
    return model.to(device)


def new_run(recipe: Recipe, stage_name: str, token_file: Path, model: TinyModel) -> Run:
    """Return a run at step 0; an adapter stage freezes everything but a new adapter."""
    stage = recipe.stage(stage_name)
    if stage.rank:
        add_adapter(model, stage.rank, stage.alpha)
    return Run(model, stage, recipe.noise, read_examples(token_file, recipe.data.longest))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="recguide_core.tiny.train", description=__doc__)
    parser.add_argument("--stage", required=True, help="joint, draft or adapter")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--init-from", type=Path, default=WEIGHTS, help="exported folder")
    parser.add_argument("--from-scratch", action="store_true", help="random start weights")
    parser.add_argument("--recipe", type=Path, default=DEFAULT_RECIPE)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint-minutes", type=float, default=4.0)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.from_scratch:
        model = TinyModel(Shape()).to(args.device)
    else:
        model = start(args.init_from, args.device)
    recipe = read_recipe(args.recipe)
    run = new_run(recipe, args.stage, args.token_file, model)
    if not run.examples:
        raise DataError(f"{args.token_file} holds no usable document.", "Prepare it again.")
    args.out.mkdir(parents=True, exist_ok=True)
    logging.getLogger().addHandler(logging.FileHandler(args.out / "losses.jsonl"))
    if (args.out / "checkpoint.pt").exists():
        run.resume(args.out)
    forward = torch.compile(model, dynamic=True) if args.compile else model
    run.finish(args.out, forward, args.checkpoint_minutes)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
