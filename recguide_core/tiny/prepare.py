"""Make the token file of the joint stage: `python -m recguide_core.tiny.prepare --out FILE`.

Reads GSM8K train and MBPP train (JSON lines with `prompt` and `answer`) from a folder, adds
synthetic documents. No test set is opened.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random

from recguide_core.errors import DataError
from recguide_core.tiny.corpus import documents
from recguide_core.tiny.recipe import DEFAULT_RECIPE, Recipe, read_recipe
from recguide_core.tiny.text import encode
from recguide_core.tiny.token_file import Example, Use, write_examples

log = logging.getLogger(__name__)


def data_folder(argument: Path | None) -> Path:
    """Return the folder of the human data: the argument, else RECGUIDE_DATA_DIR.

    Raises:
        DataError: neither is given, or it is no folder.
    """
    name = argument or os.environ.get("RECGUIDE_DATA_DIR")
    if not name or not Path(name).is_dir():
        raise DataError(
            f"No data folder ({name or 'none given'}).",
            "Give --data-dir or set RECGUIDE_DATA_DIR to a folder with gsm8k_train.jsonl and "
            "mbpp_train.jsonl.",
        )
    return Path(name)


def read_pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    """Return prompts and answers of `folder/name.jsonl`.

    Raises:
        DataError: no such file, or a line without the two fields.
    """
    path = folder / f"{name}.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text().split("\n") if line]
        return [(r["prompt"].strip(), r["answer"].replace("\r\n", "\n").strip()) for r in rows]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read: {error}.", "Each line needs `prompt` and `answer`."
        ) from error


def mixture(
    recipe: Recipe, folder: Path, seed: int, count: int, human: Use = Use.BOTH
) -> list[Example]:
    """Return `count` synthetic documents and their share of human ones, shuffled; `human` says
    which losses the latter feed.
    """
    rng = Random(seed)
    examples = []
    for domain, share in recipe.data.mix.items():
        for d in islice(documents(domain, seed, test=False), int(count * share)):
            examples.append(encode(d.prompt, d.answer))
    for name, share in recipe.data.human.items():
        pairs = [encode(*pair, human) for pair in read_pairs(folder, name)]
        pairs = [e for e in pairs if len(e.tokens) <= recipe.data.longest]
        pairs = [e for e in pairs if len(e.tokens) - e.prompt <= recipe.data.human_answer]
        wanted = int(count * share)
        order = [i for _ in range(-(-wanted // len(pairs))) for i in rng.sample(pairs, len(pairs))]
        examples += order[:wanted]
    rng.shuffle(examples)
    return examples


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="recguide_core.tiny.prepare", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--recipe", type=Path, default=DEFAULT_RECIPE)
    parser.add_argument("--documents", type=int, help="default: the recipe's")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    recipe = read_recipe(args.recipe)
    count = args.documents or recipe.data.documents
    examples = mixture(recipe, data_folder(args.data_dir), args.seed, count)
    write_examples(args.out, examples)
    total = sum(len(e.tokens) for e in examples)
    log.info("%d documents, %d tokens -> %s", len(examples), total, args.out)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
