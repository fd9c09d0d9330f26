"""Is a folder a checkpoint that RecGuide can run? Every fault at once, each explained.

Reads headers, not tensors: a checkpoint of 27 GB is checked in seconds. Geometry, names, adapter,
tokenizer, chat template and special ids; stops early only where the rest has no meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide_core.errors import RecGuideError
from recguide_core.model.config import ModelConfig, read_config
from recguide_core.model.weights import ADAPTER_FOLDER, tensor_shapes

AGAIN = "Download the checkpoint again."
NLD_TYPES = ("nemotron_labs_diffusion",)
ARCHITECTURE = "NemotronLabsDiffusionModel"
SHOWN = 3
"""Tensor names listed in one fault."""

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a checkpoint.

    Attributes:
        part: config, weights, adapter, tokenizer, template or ids.
        serious: it cannot be served; otherwise it can, with a loss that `cause` names.
    """

    part: str
    cause: str
    remedy: str
    serious: bool = True


def check_folder(folder: Path) -> list[Fault]:
    """Every fault of a checkpoint folder, serious ones first; empty when all is well."""
    try:
        config = read_config(folder)
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except RecGuideError as error:
        return [Fault("config", error.cause, error.remedy)]
    found = [
        *_config_faults(raw),
        *_weight_faults(folder, config),
        *_adapter_faults(folder, config),
        *_tokenizer_faults(folder, config),
    ]
    return sorted(found, key=lambda fault: not fault.serious)


def _config_faults(raw: Mapping[str, Any]) -> Iterator[Fault]:
    kind = raw.get("model_type")
    if kind not in NLD_TYPES:
        yield Fault(
            "config",
            f"model_type is '{kind}', not {NLD_TYPES[0]}.",
            "Use a Nemotron-Labs-Diffusion text checkpoint.",
        )
    if list(raw.get("architectures") or []) != [ARCHITECTURE]:
        yield Fault(
            "config",
            f"architectures is {raw.get('architectures')}, so SGLang will not find the model.",
            f'Set it to ["{ARCHITECTURE}"], as published.',
        )
    if "head_dim" not in raw:
        yield Fault(
            "config",
            "head_dim is missing; hidden / heads is not the head size of every NLD model.",
            "Take config.json as published with the checkpoint.",
            serious=False,
        )
    if not (raw.get("rope_parameters") or raw.get("rope_scaling") or raw.get("rope_theta")):
        yield Fault(
            "config",
            "config.json has no rope_parameters; positions would be rotated wrongly.",
            "Take config.json as published with the checkpoint.",
        )


# -- weights ----------------------------------------------------------------------------------


def _headers(path: Path) -> Shapes:
    """Tensor name -> shape of one safetensors file, from its header."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _weight_faults(folder: Path, config: ModelConfig) -> Iterator[Fault]:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (json.JSONDecodeError, KeyError, AttributeError) as error:
            yield Fault("weights", f"{index.name} is malformed: {error!r}.", AGAIN)
            return
    found: Shapes = {}
    for name in names:
        if not (folder / name).is_file():
            yield Fault("weights", f"The weight file {name} is missing.", AGAIN)
            continue
        try:
            found |= _headers(folder / name)
        except Exception as error:
            yield Fault("weights", f"{name} is no readable safetensors file: {error}.", AGAIN)
    if found:
        yield from _compare("weights", tensor_shapes(config), found, "encoder.", config.tied)


def _compare(part: str, expected: Shapes, found: Shapes, stem: str, tied: bool) -> Iterator[Fault]:
    missing = sorted(set(expected) - set(found))
    if missing == ["diffusion_head.weight"] and not tied:
        yield Fault(
            part,
            "diffusion_head.weight is missing; the embedding is used as the head.",
            "Set tie_word_embeddings if that is meant, else download the checkpoint again.",
            serious=False,
        )
    elif missing:
        foreign = sorted(name for name in found if not name.startswith((stem, "diffusion_head")))
        hint = f" The file has names such as {foreign[0]}." if foreign else ""
        yield Fault(part, f"{len(missing)} tensors are missing: {_some(missing)}.{hint}", AGAIN)
    wrong = [
        f"{name} {found[name]}, not {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        yield Fault(
            part,
            f"{len(wrong)} tensors do not have the shape that config.json implies: {_some(wrong)}.",
            "Use the config.json that belongs to these weights.",
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


# -- adapter ----------------------------------------------------------------------------------


def _adapter_faults(folder: Path, config: ModelConfig) -> Iterator[Fault]:
    home = folder / ADAPTER_FOLDER
    if not home.is_dir():
        yield Fault(
            "adapter",
            f"There is no {ADAPTER_FOLDER}/: drafts are made without the adapter and are shorter.",
            "Instruct checkpoints ship it; base checkpoints have none.",
            serious=False,
        )
        return
    try:
        settings = json.loads((home / "adapter_config.json").read_text(encoding="utf-8"))
        rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
        targets = settings["target_modules"]
        found = _headers(home / "adapter_model.safetensors")
    except Exception as error:
        yield Fault("adapter", f"{ADAPTER_FOLDER}/ cannot be read: {error!r}.", AGAIN)
        return
    # PEFT writes one name as a string.
    if list([targets] if isinstance(targets, str) else targets) != ["o_proj"]:
        yield Fault(
            "adapter",
            f"The adapter targets {targets}, not o_proj alone.",
            f"Use the {ADAPTER_FOLDER} folder published with the checkpoint.",
        )
        return
    if rank < 1 or alpha <= 0:
        yield Fault("adapter", f"r is {rank} and lora_alpha {alpha}.", AGAIN)
    width = config.heads * config.head_dim
    expected: Shapes = {}
    for i in range(config.layers):
        base = f"base_model.model.encoder.layers.{i}.self_attn.o_proj."
        expected[base + "lora_A.weight"] = (rank, width)
        expected[base + "lora_B.weight"] = (config.hidden, rank)
    yield from _compare("adapter", expected, found, "base_model.", True)


# -- tokenizer --------------------------------------------------------------------------------


def _tokenizer_faults(folder: Path, config: ModelConfig) -> Iterator[Fault]:
    from recguide_core.model.tokenizer import Tokenizer

    if not (folder / "tokenizer.json").is_file():
        yield Fault("tokenizer", "tokenizer.json is missing.", AGAIN)
        return
    try:
        tokenizer = Tokenizer.read(folder)
    except Exception as error:
        yield Fault("tokenizer", f"The tokenizer files cannot be read: {error}", AGAIN)
        return
    size = tokenizer.raw.get_vocab_size(with_added_tokens=True)
    if size > config.vocab:
        yield Fault(
            "tokenizer",
            f"The tokenizer has {size} tokens, the model {config.vocab}.",
            "Use the tokenizer that belongs to these weights.",
        )
    for name, token in [("mask", config.mask_id), *(("eos", e) for e in config.eos_ids)]:
        if tokenizer.raw.id_to_token(token) is None:
            yield Fault("ids", f"The {name} id {token} is no token of the tokenizer.", AGAIN)
    if config.mask_id in config.eos_ids:
        yield Fault(
            "ids",
            f"Mask and eos are the same id, {config.mask_id}.",
            "Take config.json and generation_config.json as published.",
        )
    yield from _template_faults(tokenizer)


def _template_faults(tokenizer: Any) -> Iterator[Fault]:
    if tokenizer.template_source is None:
        yield Fault(
            "template",
            "There is no chat template; only completions work.",
            "Add chat_template.jinja as published with the checkpoint.",
            serious=False,
        )
        return
    try:
        text = tokenizer.render([{"role": "user", "content": "marker-3141"}])
    except RecGuideError as error:
        yield Fault("template", f"The chat template fails: {error.cause}", AGAIN)
        return
    if "marker-3141" not in text:
        yield Fault("template", "The chat template leaves the user's words out.", AGAIN)
