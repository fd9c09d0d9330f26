"""A model's files without its weights in memory: for whoever lets another process run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide_core.errors import DataError
from recguide_core.model.config import ModelConfig, read_config
from recguide_core.model.registry import resolve
from recguide_core.model.tokenizer import Tokenizer
from recguide_core.model.weights import content_hash


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known of a checkpoint folder.

    Attributes:
        name: as the user gave it; hash: as `registry.LoadedModel` has it.
    """

    name: str
    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    hash: str

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset(self.config.eos_ids)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Apply the checkpoint's chat template."""
        return self.tokenizer.render(messages)


def read_checkpoint(name: str) -> Checkpoint:
    """A checkpoint by bundled name, alias, hub id or folder.

    Raises:
        RecGuideError: no such model, or it cannot be fetched. DataError: files are missing.
    """
    folder = resolve(name)
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file():
        raise DataError(f"{name} has no tokenizer.", "Add tokenizer.json to its folder.")
    return Checkpoint(name, folder, config, Tokenizer.read(folder), content_hash(folder))
