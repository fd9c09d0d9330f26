"""Settings of a calibration, checked once, and the names of the files that it writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from recguide_core.calibration.explore import MENU, check_menu
from recguide_core.calibration.quality import FOLDS
from recguide_core.errors import UsageError
from recguide_core.policy.value_fit import BINS

DELTAS = (0.3, 0.5, 0.7, 0.9)
"""Margins below which a position may count as risky; tune chooses among them."""

EMBEDDED, SGLANG = "embedded", "sglang"
"""Engines that tables can be made with."""

TABLES = Path("runs") / "tables"
"""Where profile, calibrate and tune meet when no folder is named."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How tables are fitted to a trace.

    Attributes:
        positions: decisions that e_t averages over: `all`, or a number.
        bins: quantile bins of s in each stratum; folds: parts for held-out quality.
    """

    positions: str = "all"
    bins: int = BINS
    folds: int = FOLDS

    def __post_init__(self) -> None:
        if self.positions != "all" and not (self.positions.isdigit() and int(self.positions) > 0):
            raise UsageError(
                f"Entropy positions are '{self.positions}'.", "Choose all, or a number such as 7."
            )
        for name, value in (("bins", self.bins), ("folds", self.folds)):
            if value < 2:
                raise UsageError(f"{name} is {value}.", f"Choose at least 2 {name}.")


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """How traces are made.

    Attributes:
        requests: prompts to decode, the sets taking turns; max_tokens: output limit of each.
        menu: block sizes, 1 for plain AR; batch: requests decoded at once.
        engine: whose forwards make the rounds.
    """

    model: str = "nld-tiny"
    requests: int = 96
    max_tokens: int = 192
    menu: tuple[int, ...] = MENU
    batch: int = 16
    seed: int = 0
    template: str = "plain"
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 0
    engine: str = EMBEDDED

    def __post_init__(self) -> None:
        wrong = check_menu(self.menu)
        if wrong:
            raise UsageError(
                f"The menu {','.join(map(str, self.menu))} will not do: {wrong}.",
                f"Write it like: --menu {','.join(map(str, MENU))}",
            )
        for name in ("requests", "max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name} is {getattr(self, name)}.", f"Choose at least 1 for {name}."
                )
        if self.max_tokens <= self.menu[-1] * 2:
            raise UsageError(
                f"Answers of {self.max_tokens} tokens leave too little to compare blocks of "
                f"{self.menu[-1]}.",
                f"Choose --max-tokens above {self.menu[-1] * 2}.",
            )


def stem(model: str, device: str, engine: str = EMBEDDED) -> str:
    """File name of a model's tables on a device, e.g. `cpu-nld-tiny`.

    Args:
        engine: what its forwards were timed or its rounds made with, when it is not the embedded
            one: `cpu-nld-tiny-sglang`.
    """
    place = "cpu" if device.startswith("cpu") else device.split(":")[0]
    name = Path(model).name or "model"
    suffix = "" if engine == EMBEDDED else f"-{engine}"
    return re.sub(r"[^a-z0-9.]+", "-", f"{place}-{name}{suffix}".lower()).strip("-")
