"""Train the DFlash-style drafter: `python -m recguide_core.tiny.train_drafter --token-file F`.

Same batches and blocks as the target (`streams.py`); the target runs causally without gradients and
gives the hidden states. Ends by measuring tau with the hidden states and with zeros in their place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recguide_core.tiny.corpus import DOMAINS, documents
from recguide_core.tiny.decode import causal_cache, greedy
from recguide_core.tiny.drafter import DFlashDrafter, DrafterShape, load_drafter, save_drafter
from recguide_core.tiny.network import MASK, TinyModel
from recguide_core.tiny.optimizer import MuonAdamW
from recguide_core.tiny.recipe import DEFAULT_RECIPE, Recipe, read_recipe
from recguide_core.tiny.rounds import Drafter, play
from recguide_core.tiny.streams import Batch, build, schedule
from recguide_core.tiny.text import WEIGHTS, encode_prompt
from recguide_core.tiny.token_file import Example, read_examples
from recguide_core.tiny.train import start

log = logging.getLogger(__name__)

Loss = Callable[[Batch], Tensor]


def drafting_loss(target: TinyModel, drafter: DFlashDrafter, batch: Batch) -> Tensor:
    """Return the masked cross-entropy of the drafter, nats per weighted token."""
    clean = batch.clean
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            context = causal_hidden(target, batch.tokens[:, :clean])
        hidden = drafter(context, batch.tokens[:, clean:], batch.positions[:, clean:], batch.mask())
        used = batch.draft_weight > 0
        logits = drafter.logits(hidden[used]).float()
    loss = F.cross_entropy(logits, batch.targets[:, clean:][used], reduction="none")
    weight = batch.draft_weight[used]
    return (loss * weight).sum() / weight.sum()


def causal_hidden(target: TinyModel, tokens: Tensor) -> Tensor:
    """Return the target's final hidden states [n, t, hidden] of padded texts [n, t]."""
    n, t = tokens.shape
    nothing = torch.zeros(n, 1, 0, t, dtype=torch.bfloat16)
    hidden: Tensor = target(tokens, torch.arange(t).expand(n, t), nothing, t)
    return hidden


def train(
    target: TinyModel,
    drafter: DFlashDrafter,
    examples: list[Example],
    recipe: Recipe,
    log_every: int,
) -> None:
    """Train to the end of the recipe's `drafter` stage."""
    stage = recipe.stage("drafter")
    optimizer = MuonAdamW(drafter.named_parameters())
    seen, mean, began = 0, 0.0, time.monotonic()
    for step, rows in enumerate(schedule(examples, stage.seed, stage.batch_tokens, 0)):
        if seen >= stage.tokens:
            break
        rng = np.random.default_rng((stage.seed, step))
        batch = build([examples[i] for i in rows], recipe.noise, rng, stage.block_share)
        loss = drafting_loss(target, drafter, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        rate = stage.rate(step, seen)
        optimizer.step(stage.muon_rate * rate, stage.adam_rate * rate)
        seen += sum(len(examples[i].tokens) for i in rows)
        mean = 0.95 * mean + 0.05 * loss.item()
        if (step + 1) % log_every == 0:
            speed = round(seen / (time.monotonic() - began))
            log.info("step %d tokens %d loss %.3f tokens/s %d", step + 1, seen, mean, speed)


def block_drafter(drafter: DFlashDrafter, hidden: Tensor) -> Drafter:
    """Return the drafting function over hidden states [n, width, hidden] of whole texts."""

    def draft(seeds: Tensor, starts: Tensor, B: int) -> Tensor:
        n, width = len(seeds), int(starts.max())
        tokens = torch.full((n, B), MASK)
        tokens[:, 0] = seeds
        before = (torch.arange(width)[None] < starts[:, None])[:, None, None].expand(n, 1, B, width)
        mask = torch.cat([before, torch.ones(n, 1, B, B, dtype=torch.bool)], -1)
        positions = starts[:, None] + torch.arange(B)
        return drafter.logits(drafter(hidden[:, :width], tokens, positions, mask))

    return draft


@torch.inference_mode()
def tau(
    target: TinyModel,
    drafter: DFlashDrafter,
    prompts: list[list[int]],
    answers: list[list[int]],
    block: int,
    *,
    zero_hidden: bool,
) -> float:
    """Return emitted tokens per round; `zero_hidden` replaces the hidden states by zeros."""
    hidden, _ = causal_cache(target, [p + a for p, a in zip(prompts, answers, strict=True)])
    hidden = hidden * 0.0 if zero_hidden else hidden
    played = play(
        lambda rows: block_drafter(drafter, hidden[torch.tensor(rows)]), prompts, answers, block
    )
    accepted = [r.accepted for rounds in played for r in rounds]
    return sum(accepted) / len(accepted)


def measure(target: TinyModel, drafter: DFlashDrafter, per_domain: int) -> dict[str, float]:
    """Return tau at B = 16 over held-out prompts of the own domains, and with zeroed states."""
    asked = [d for name in DOMAINS for d in islice(documents(name, 7, test=True), per_domain)]
    prompts = [encode_prompt(d.prompt) for d in asked]
    answers = greedy(target, prompts, 320)
    result = {
        "tau_16": tau(target, drafter, prompts, answers, 16, zero_hidden=False),
        "tau_16_zero_hidden": tau(target, drafter, prompts, answers, 16, zero_hidden=True),
    }
    result["drop"] = 1.0 - result["tau_16_zero_hidden"] / result["tau_16"]
    return {name: round(value, 3) for name, value in result.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="recguide_core.tiny.train_drafter", description=__doc__)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="the target")
    parser.add_argument("--out", type=Path, help="default: dflash_drafter beside the target")
    parser.add_argument("--recipe", type=Path, default=DEFAULT_RECIPE)
    parser.add_argument("--per-domain", type=int, default=16, help="prompts measured")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    target = start(args.weights, "cpu").eval()
    recipe = read_recipe(args.recipe)
    examples = read_examples(args.token_file, recipe.data.longest)
    drafter = DFlashDrafter(DrafterShape(), target.encoder.embed_tokens.weight)
    train(target, drafter, examples, recipe, 20)
    folder = args.out or args.weights / "dflash_drafter"
    digest = hashlib.sha256((args.weights / "model.safetensors").read_bytes()).hexdigest()
    save_drafter(folder, drafter, digest)
    saved = load_drafter(folder, target.encoder.embed_tokens.weight)
    results = measure(target, saved, args.per_domain)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    log.info("%s", json.dumps(results))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
