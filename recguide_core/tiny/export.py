"""Write and read the published layout: `python -m recguide_core.tiny.export CHECKPOINT FOLDER`.

The head is stored as its own tensor `diffusion_head.weight` although training ties it to the
embedding.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recguide_core.errors import DataError
from recguide_core.tiny.network import ASSISTANT, BOS, EOS, MASK, PAD, USER, Shape
from recguide_core.tiny.text import WEIGHTS

log = logging.getLogger(__name__)

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def config(shape: Shape, name: str) -> dict[str, object]:
    """Return `config.json` with the keys of the published models."""
    keys = {k: v for k, v in asdict(shape).items() if k != "rope_theta"}
    return {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": "nemotron_labs_diffusion",
        "name": name,
        **keys,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "block_size": 16,
        "dlm_paradigm": "bidirectional",
        "mask_token_id": MASK,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "user_token_id": USER,
        "assistant_token_id": ASSISTANT,
        "torch_dtype": "bfloat16",
    }


def write_weights(folder: Path, state: dict[str, Tensor], shape: Shape, name: str) -> None:
    """Write weights (bfloat16), configs and text files to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: w.detach().cpu().bfloat16().contiguous() for n, w in state.items()}
    tensors["diffusion_head.weight"] = tensors["encoder.embed_tokens.weight"].clone()
    part = folder / "model.part"
    save_file(tensors, part, metadata={"format": "pt"})
    part.replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(shape, name), indent=1) + "\n")
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    for file in TEXT_FILES:
        if not (folder / file).exists():
            shutil.copy(WEIGHTS / file, folder / file)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the state dict of a folder in float32, head left out (it is tied).

    Raises:
        DataError: no readable `model.safetensors`, or head and embedding differ.
    """
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path} cannot be read: {error}.",
            "Give a folder written by `python -m recguide_core.tiny.export`.",
        ) from error
    head = tensors.pop("diffusion_head.weight", None)
    if head is None or not torch.equal(head, tensors["encoder.embed_tokens.weight"]):
        raise DataError(f"{path} has no tied head.", "Only nld-tiny's own files can be trained on.")
    return {name: weight.float() for name, weight in tensors.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="recguide_core.tiny.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="nld-tiny")
    args = parser.parse_args(arguments)
    state = torch.load(args.checkpoint, map_location="cpu")["model"]
    write_weights(args.folder, state, Shape(), args.name)
    log.info("wrote %s", args.folder)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
