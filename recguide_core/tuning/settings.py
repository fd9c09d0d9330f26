"""Settings of a tuning run, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from recguide_core.calibration.settings import EMBEDDED
from recguide_core.engine.guidance import FULL_MENU
from recguide_core.errors import UsageError

LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Concurrencies that get a rho, as far as the cost table reaches."""
CONCURRENCY = (1, 8, 32)
"""Loads at which rho is corrected on-policy and the gain is measured."""


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """What to tune.

    Attributes:
        concurrency: loads that are run on-policy.
        requests: prompts whose gain is measured; as many others tune rho.
        iterations: on-policy corrections of rho.
        menu: blocks that RecGuide may choose from.
        folds: parts for the out-of-fold choice of rho.
        engine: whose tables are tuned from and whose forwards are recorded.
    """

    model: str = "nld-tiny"
    concurrency: tuple[int, ...] = CONCURRENCY
    requests: int = 16
    max_tokens: int = 80
    iterations: int = 2
    menu: tuple[int, ...] = FULL_MENU
    folds: int = 5
    seed: int = 0
    template: str = "plain"
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 0
    engine: str = EMBEDDED

    def __post_init__(self) -> None:
        for name in ("requests", "max_tokens", "folds"):
            if getattr(self, name) < 2:
                raise UsageError(
                    f"{name} is {getattr(self, name)}.", f"Choose at least 2 for {name}."
                )
        if self.iterations < 0:
            raise UsageError(
                f"iterations is {self.iterations}.", "Choose 0 to keep the out-of-fold rho."
            )
        if not self.concurrency or min(self.concurrency) < 1:
            raise UsageError(
                "Concurrency must be a list of positive numbers.",
                "Write it like: --concurrency 1,8,32",
            )
