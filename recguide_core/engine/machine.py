"""Something that runs packed rows over a cache of its own, outside any scheduler.

Profiling, calibration and recordings send rows that no policy would: every block of the menu from
one state, or forwards that nobody decodes. They need a model, places for requests in a KV cache,
and an executor, and do not care whose: the embedded model here, or the one that SGLang serves
(`sglang_plugin.machine`).
"""

from __future__ import annotations

from typing import Protocol

import torch

from recguide_core.engine.readings import Executor
from recguide_core.engine.runner import TorchRunner
from recguide_core.kvcache import KVPool
from recguide_core.model.config import ModelConfig
from recguide_core.model.registry import LoadedModel

PAGE = 16


class Places(Protocol):
    """Places of requests in a KV cache, by slot; see `pages.PageTable`."""

    def reserve(self, request: int, tokens: int, expected: int = 0) -> bool:
        """Make room for positions [0, tokens); False when there is none."""

    def begin(self, request: int, in_flight: int) -> None:
        """Name the positions behind the committed ones that the next step's rows write."""

    def commit(self, request: int, tokens: int) -> None:
        """Keep the first `tokens` of what the step wrote."""

    def release(self, request: int) -> None:
        """Give everything of a request back."""


class Machine(Protocol):
    """A model and the device that it runs on.

    Attributes:
        config: geometry and ids; eos_ids: tokens that end a text.
        context: longest sequence in tokens; device: where forwards run.
    """

    config: ModelConfig
    eos_ids: frozenset[int]
    context: int
    device: torch.device

    def open(self, requests: int, tokens: int, in_flight: int) -> tuple[Places, Executor]:
        """A cache for `requests` requests of `tokens` committed and `in_flight` further tokens
        each, and the executor over it.
        """


class EmbeddedMachine:
    """The embedded model: a pool as large as asked for, and the torch runner."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.config = model.config
        self.eos_ids = model.eos_ids
        self.context = min(model.config.max_positions, len(model.transformer.rotary.cos))
        self.device = model.transformer.device

    def open(self, requests: int, tokens: int, in_flight: int) -> tuple[Places, Executor]:
        config = self.config
        pages = -(-(tokens + in_flight) // PAGE)
        pool = KVPool(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            tokens=requests * pages * PAGE,
            page_size=PAGE,
            device=self.device,
            dtype=self.model.transformer.dtype,
        )
        return pool, TorchRunner(self.model, pool)
