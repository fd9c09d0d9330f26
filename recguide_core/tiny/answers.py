"""Make the token file of the draft stage from the model's own greedy answers.

`python -m recguide_core.tiny.answers --weights FOLDER --data-dir DIR --out FILE`. An own answer is
kept for both losses if it is right and for the drafting loss only if it merely ends; otherwise the
reference takes its place. A GSM8K answer that goes in circles is kept beside the reference as one
to avoid. Fresh synthetic documents and human ones keep the model from drifting; human texts, which
the model would not write, feed the AR loss only.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random

import torch

from recguide_core.tiny import checks
from recguide_core.tiny.corpus import DOMAINS, Document, documents
from recguide_core.tiny.decode import greedy
from recguide_core.tiny.network import EOS
from recguide_core.tiny.prepare import data_folder, mixture, read_pairs
from recguide_core.tiny.recipe import DEFAULT_RECIPE, read_recipe
from recguide_core.tiny.text import decode, encode, encode_prompt
from recguide_core.tiny.token_file import Example, Use, write_examples
from recguide_core.tiny.train import start

log = logging.getLogger(__name__)

VARIED = 0.7
"""Least share of different 4-grams in an own GSM8K answer that is kept."""
CIRCLES = 0.5
"""Below this share an own GSM8K answer goes in circles: it is kept as one to avoid."""


def distinct_share(ids: list[int]) -> float:
    """Return the share of different 4-grams among all 4-grams of a text."""
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return len(set(grams)) / max(len(grams), 1)


def use_of(document: Document, ids: list[int], text: str) -> Use | None:
    """Return which losses an own answer feeds, None if the reference has to take its place."""
    human, varied = document.domain == "gsm8k", distinct_share(ids)
    if human and varied < CIRCLES:
        return Use.AVOID
    if ids[-1] != EOS or len(ids) < 12 or varied < (VARIED if human else 0.35):
        return None
    if document.domain == "gsm8k":
        score = checks.marks(text)
        return Use.BOTH if score.total and score.share >= 0.6 else Use.DRAFT_ONLY
    if document.domain == "math":
        score = checks.marks(text)
        return Use.BOTH if score.right == score.total else None
    if document.domain == "code":
        return Use.BOTH if checks.code(text).right else None
    return Use.BOTH if checks.lines(text, document.answer).share > 0.99 else None


def prompts(folder: Path, seed: int, per_domain: int, gsm8k: int) -> list[Document]:
    """Return training prompts with their reference answers: own domains and GSM8K train."""
    result = [d for name in DOMAINS for d in islice(documents(name, seed, test=False), per_domain)]
    pairs = Random(seed).sample(read_pairs(folder, "gsm8k_train"), gsm8k)
    return result + [Document("gsm8k", "gsm8k", q, a) for q, a in pairs]


def own_answers(
    weights: Path, asked: list[Document], new_tokens: int, longest: int
) -> list[Example]:
    """Return own answers, and references of at most `longest` tokens in the place of others, as
    examples in the order of `asked`.
    """
    model = start(weights, "cpu").eval()
    ids = greedy(model, [encode_prompt(d.prompt) for d in asked], new_tokens, batch=96)
    examples: list[Example] = []
    tally = Counter[str]()
    for document, answer in zip(asked, ids, strict=True):
        text = decode(answer)
        use = use_of(document, answer, text)
        tally[f"{document.domain}: {'reference' if use is None else use.name.lower()}"] += 1
        if use in (None, Use.AVOID):
            losses = Use.AR_ONLY if document.domain == "gsm8k" else Use.BOTH
            reference = encode(document.prompt, document.answer, losses)
            if len(reference.tokens) - reference.prompt <= longest:
                examples.append(reference)
        if use is not None:
            examples.append(encode(document.prompt, text, use))
    for name, count in sorted(tally.items()):
        log.info("%s %d", name, count)
    return examples


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="recguide_core.tiny.answers", description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="exported folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--recipe", type=Path, default=DEFAULT_RECIPE)
    parser.add_argument("--per-domain", type=int, default=160)
    parser.add_argument("--gsm8k", type=int, default=1500)
    parser.add_argument("--fresh", type=int, default=3000, help="further documents")
    parser.add_argument("--new-tokens", type=int, default=320)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    folder = data_folder(args.data_dir)
    asked = prompts(folder, args.seed, args.per_domain, args.gsm8k)
    recipe = read_recipe(args.recipe)
    examples = own_answers(args.weights, asked, args.new_tokens, recipe.data.human_answer)
    examples += mixture(recipe, folder, args.seed + 1, args.fresh, human=Use.AR_ONLY)
    Random(args.seed).shuffle(examples)
    write_examples(args.out, examples)
    log.info("%d documents -> %s", len(examples), args.out)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
