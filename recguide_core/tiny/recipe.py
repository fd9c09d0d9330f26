"""The training recipe as typed records, read from one TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from recguide_core.errors import DataError, nearest
from recguide_core.tiny.streams import Noise

DEFAULT_RECIPE = Path(__file__).with_name("train.toml")


@dataclass(frozen=True)
class Data:
    """`documents` synthetic documents shared out by `mix`; `human` documents per synthetic one.

    Human answers of more than `human_answer` tokens are left out: the longest GSM8K solutions are
    beyond the model, and what it learns of them is to go in circles.
    """

    longest: int
    documents: int
    mix: dict[str, float]
    human: dict[str, float]
    human_answer: int = 480


@dataclass(frozen=True)
class Stage:
    """One training stage; `tokens` and `batch_tokens` count clean tokens."""

    tokens: int
    batch_tokens: int
    draft_weight: float
    muon_rate: float
    adam_rate: float
    final_rate: float
    warmup_steps: int
    seed: int
    block_share: float = 1.0
    rank: int = 0
    alpha: float = 0.0

    def rate(self, step: int, seen: int) -> float:
        """Share of the full rate at `step` with `seen` clean tokens behind: warm-up, then
        linear.
        """
        done = min(1.0, seen / self.tokens)
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return warm * (1.0 - (1.0 - self.final_rate) * done)


@dataclass(frozen=True)
class Recipe:
    """Everything that `train.toml` says."""

    data: Data
    noise: Noise
    stages: dict[str, Stage]

    def stage(self, name: str) -> Stage:
        """Return a stage by name.

        Raises:
            DataError: the recipe has no such stage.
        """
        if name not in self.stages:
            raise DataError(f"The recipe has no stage '{name}'.", nearest(name, self.stages))
        return self.stages[name]


def read_recipe(path: Path = DEFAULT_RECIPE) -> Recipe:
    """Read a recipe.

    Raises:
        DataError: the file is missing, no TOML, or a key is missing or unknown.
    """
    try:
        raw = tomllib.loads(path.read_text())
        noise = raw.pop("noise")
        data = Data(**raw.pop("data"))
        noise["sizes"] = tuple(noise["sizes"])
        return Recipe(data, Noise(**noise), {name: Stage(**keys) for name, keys in raw.items()})
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no training recipe: {error}.",
            "Compare it with recguide_core/tiny/train.toml.",
        ) from error
