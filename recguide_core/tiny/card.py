"""Measure the shipped model and write its card: `python -m recguide_core.tiny.card --data-dir DIR`.

Every figure of `CARD.md` comes from here: greedy answers to held-out prompts (float32 arithmetic
over the bfloat16 file), their rounds at B = 8, 16, 32, and the checks of the texts. `--render-only`
writes the card again from `card.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import pickle
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from recguide_core.errors import DataError
from recguide_core.tiny import checks, figures
from recguide_core.tiny.card_page import render
from recguide_core.tiny.corpus import DOMAINS, Document, documents
from recguide_core.tiny.decode import greedy
from recguide_core.tiny.network import EOS, TinyModel
from recguide_core.tiny.prepare import data_folder, read_pairs
from recguide_core.tiny.rounds import Round, replay
from recguide_core.tiny.text import WEIGHTS, decode, encode, encode_prompt
from recguide_core.tiny.train import start

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
BLOCKS = (8, 16, 32)
_SEED = 5
_SAMPLES = 2

Rounds = dict[int, list[list[Round]]]


def demo() -> list[Document]:
    """Return the bundled demo prompts, without reference answers."""
    lines = (HERE / "demo_prompts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [Document(r["category"], "demo", r["prompt"], "") for r in rows]


def prompt_sets(folder: Path, count: int) -> dict[str, list[Document]]:
    """Return GSM8K test, held-out prompts of the own domains and the demo prompts."""
    pairs = read_pairs(folder, "gsm8k_test")[:count]
    sets = {"gsm8k": [Document("gsm8k", "gsm8k", q, a) for q, a in pairs]}
    for domain in DOMAINS:
        sets[domain] = list(islice(documents(domain, _SEED, test=True), count))
    return {**sets, "demo": demo()}


def right(documents_: list[Document], texts: list[str]) -> checks.Score:
    """Return how much of the texts is right: marks, code that holds, or lines of the reference."""
    total = checks.Score(0, 0)
    for document, text in zip(documents_, texts, strict=True):
        if document.domain in ("math", "gsm8k"):
            total += checks.marks(text)
        elif document.domain == "code":
            total += checks.code(text)
        elif document.answer:
            total += checks.lines(text, document.answer)
    return total


def measure_set(
    model: TinyModel, asked: list[Document], new_tokens: int
) -> tuple[dict[str, Any], Rounds]:
    """Return the figures and the rounds of one prompt set."""
    prompts = [encode_prompt(d.prompt) for d in asked]
    answers = greedy(model, prompts, new_tokens)
    texts = [decode(a) for a in answers]
    rounds = {B: replay(model, prompts, answers, B) for B in BLOCKS}
    score = right(asked, texts)
    references = [encode(d.prompt, d.answer) for d in asked if d.answer]
    result: dict[str, Any] = {
        "prompts": len(asked),
        "tokens": sum(len(a) for a in answers) / len(asked),
        "ended": sum(a[-1] == EOS for a in answers) / len(asked),
        "distinct": figures.distinct_share(answers),
        "right": score.share,
        "checked": score.total,
        "samples": [[asked[i].prompt, texts[i]] for i in range(_SAMPLES)],
        **figures.drafting(rounds),
    }
    if references:
        data = [e.tokens[e.prompt :].tolist() for e in references]
        result["distinct_data"] = figures.distinct_share(data)
    return result, rounds


def _part(path: Path, model: TinyModel, asked: list[Document]) -> tuple[dict[str, Any], Rounds]:
    """Return a set's figures and rounds, from `path` if an earlier run left them there."""
    if not path.exists():
        result = measure_set(model, asked, 320 if asked[0].domain == "gsm8k" else 480)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(result))
    kept: tuple[dict[str, Any], Rounds] = pickle.loads(path.read_bytes())
    return kept


def measure(
    weights: Path, folder: Path, count: int, parts: Path, only: list[str] | None
) -> dict[str, Any] | None:
    """Return every figure of the card, or None if `only` some sets were measured into `parts`."""
    model = start(weights, "cpu").eval()
    sets: dict[str, Any] = {}
    mixed: Rounds = {B: [] for B in BLOCKS}
    for name, asked in prompt_sets(folder, count).items():
        if only and name not in only:
            continue
        sets[name], rounds = _part(parts / f"{name}.pkl", model, asked)
        log.info("%s tau %s right %.3f", name, sets[name]["tau"], sets[name]["right"])
        if name != "demo":
            mixed = {B: mixed[B] + rounds[B] for B in BLOCKS}
    if only:
        return None
    drafter = weights / "dflash_drafter" / "results.json"
    return {
        "sha256": hashlib.sha256((weights / "model.safetensors").read_bytes()).hexdigest(),
        "bytes": (weights / "model.safetensors").stat().st_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "sets": sets,
        "mixed": figures.drafting(mixed),
        "drafter": json.loads(drafter.read_text()) if drafter.exists() else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="recguide_core.tiny.card", description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--prompts", type=int, default=200, help="per set")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of card.json and CARD.md")
    parser.add_argument("--parts", type=Path, help="folder of finished sets; given, they are kept")
    parser.add_argument("--sets", nargs="*", help="measure these sets into --parts, write no card")
    parser.add_argument("--render-only", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    store = args.out / "card.json"
    if args.render_only:
        if not store.exists():
            raise DataError(f"There is no {store}.", "Run without --render-only first.")
        results = json.loads(store.read_text())
    else:
        with TemporaryDirectory() as scratch:
            parts = args.parts or Path(scratch)
            folder = data_folder(args.data_dir)
            results = measure(args.weights, folder, args.prompts, parts, args.sets)
        if results is None:
            return
        store.write_text(json.dumps(results, indent=1) + "\n")
    (args.out / "CARD.md").write_text(render(results))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
