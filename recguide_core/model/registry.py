"""From a model's name to a loaded model: bundled `nld-tiny`, hub aliases, local folders.

The hub is reached only when the name is no local folder and the extra `hub` is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recguide_core.errors import DataError, RecGuideError, UsageError, nearest
from recguide_core.model import weights as weights_io
from recguide_core.model.config import ModelConfig, read_config
from recguide_core.model.published import published_config as published_config
from recguide_core.model.tokenizer import Tokenizer
from recguide_core.model.transformer import Transformer

TINY = "nld-tiny"
HUB_IDS: Mapping[str, str] = {
    "nld-3b": "nvidia/Nemotron-Labs-Diffusion-3B",
    "nld-8b": "nvidia/Nemotron-Labs-Diffusion-8B",
    "nld-14b": "nvidia/Nemotron-Labs-Diffusion-14B",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        name: as the user gave it; `folder`: where its files lie (None for random weights).
        hash: hash of config, weights and adapter; tables made with the model name it.
    """

    name: str
    folder: Path | None
    config: ModelConfig
    transformer: Transformer
    tokenizer: Tokenizer | None
    hash: str

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset(self.config.eos_ids)

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Apply the checkpoint's chat template."""
        if self.tokenizer is None:
            raise DataError(
                f"{self.name} has no tokenizer.", "Use a checkpoint with its tokenizer."
            )
        return self.tokenizer.render(messages, add_generation_prompt)


def bundled_folder() -> Path:
    """Folder of the bundled nld-tiny checkpoint."""
    return Path(__file__).resolve().parent.parent / "tiny" / "weights"


def resolve(name: str) -> Path:
    """Folder of a model's files: bundled, local, or fetched from the hub.

    Raises:
        UsageError: no such model. RecGuideError: it is on the hub, which can't be reached.
    """
    if name == TINY:
        return bundled_folder()
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    hub_id = HUB_IDS.get(name, name)
    if name not in HUB_IDS and (path.is_absolute() or name.startswith(".") or "/" not in name):
        raise UsageError(
            f"No model named '{name}': neither a bundled name, an alias nor a folder.",
            nearest(name, [TINY, *HUB_IDS]),
        )
    return _fetch(name, hub_id)


def _fetch(name: str, hub_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise RecGuideError(
            f"{name} has to be fetched from the hub ({hub_id}), and huggingface-hub is missing.",
            'Install "recguide[hub]", or name a local folder with the checkpoint.',
        ) from None
    try:
        return Path(snapshot_download(hub_id))
    except Exception as error:
        raise RecGuideError(
            f"{hub_id} could not be fetched: {type(error).__name__}.",
            "Check the network and your access to the repository, or name a local folder.",
        ) from error


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    max_positions: int | None = None,
) -> LoadedModel:
    """Load a model by bundled name, alias, hub id or folder.

    Args:
        max_positions: rotary tables reach this far (default: the model's context).

    Raises:
        UsageError: unknown model or dtype. DataError: files missing or malformed.
    """
    if dtype not in DTYPES:
        raise UsageError(f"Unknown dtype '{dtype}'.", nearest(dtype, DTYPES))
    folder = resolve(name)
    config = read_config(folder)
    where = torch.device(device)
    tensors = weights_io.read_tensors(folder, config, where, DTYPES[dtype])
    adapter = weights_io.read_adapter(folder, config, where, DTYPES[dtype])
    transformer = Transformer(
        config, weights_io.fuse(config, tensors), adapter, max_positions or config.max_positions
    )
    tokenizer = Tokenizer.read(folder) if (folder / "tokenizer.json").is_file() else None
    return LoadedModel(
        name, folder, config, transformer, tokenizer, weights_io.content_hash(folder)
    )


def random_model(
    name: str,
    config: ModelConfig,
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    max_positions: int = 16384,
    seed: int = 0,
) -> LoadedModel:
    """A model of a geometry with random weights: right cost, meaningless text."""
    where = torch.device(device)
    tensors = weights_io.random_tensors(config, seed, where, DTYPES[dtype])
    transformer = Transformer(config, weights_io.fuse(config, tensors), None, max_positions)
    return LoadedModel(name, None, config, transformer, None, f"random-{config.digest()}")
