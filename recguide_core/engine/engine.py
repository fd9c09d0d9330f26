"""An engine for a loaded model: the loop of `core`, a KV pool, and a back end."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recguide_core.engine.backend import execution_for
from recguide_core.engine.clock import Clock
from recguide_core.engine.core import EngineCore
from recguide_core.engine.drafter import DrafterExecutor, HiddenDrafter, load_dflash
from recguide_core.engine.host_memory import keep_freed_memory
from recguide_core.engine.planners import Planner
from recguide_core.engine.readings import Executor
from recguide_core.engine.resident_build import resident_loop
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import UsageError
from recguide_core.kvcache import KVPool
from recguide_core.model.registry import LoadedModel

AUTO_KV_BYTES = 4 << 30
"""KV pool of the automatic size at most; on CPU pages cost memory only once touched."""


def default_kv_tokens(model: LoadedModel, settings: EngineSettings, context: int) -> int:
    """Room for every slot's longest sequence and its in-flight rows, within `AUTO_KV_BYTES`."""
    itemsize = model.transformer.weights.embed.element_size()
    most = AUTO_KV_BYTES // model.config.kv_bytes_per_token(itemsize)
    return min(settings.slots * (context + 256), most)


class Engine(EngineCore):
    """`EngineCore` over a `LoadedModel`.

    Args:
        drafter: for the method `dflash`; None takes the one that lies beside the model.

    Raises:
        UsageError: the settings ask for a longer context than the model has.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        planners: Sequence[Planner],
        settings: EngineSettings | None = None,
        clock: Clock | None = None,
        drafter: HiddenDrafter | None = None,
    ) -> None:
        settings = settings or EngineSettings()
        limit = min(model.config.max_positions, len(model.transformer.rotary.cos))
        if settings.context > limit:
            raise UsageError(
                f"A context of {settings.context} tokens exceeds the model's {limit}.",
                f"Use --context {limit} or less.",
            )
        if settings.threads:
            torch.set_num_threads(settings.threads)
        context = settings.context or limit
        transformer = model.transformer
        if transformer.device.type == "cpu":
            keep_freed_memory()
        pool = KVPool(
            layers=model.config.layers,
            kv_heads=model.config.kv_heads,
            head_dim=model.config.head_dim,
            tokens=settings.kv_tokens or default_kv_tokens(model, settings, context),
            page_size=settings.page_size,
            device=transformer.device,
            dtype=transformer.dtype,
        )
        self.model = model
        self.pool = pool
        self.execution = execution_for(
            model, pool, settings.attention_backend, resident=settings.resident
        )
        self.runner = self.execution.runner
        self.drafter = drafter
        super().__init__(
            executor=self._executor(planners),
            pages=pool,
            planners=planners,
            settings=settings,
            context=context,
            mask_id=model.config.mask_id,
            eos_ids=model.eos_ids,
            clock=clock,
            vocab=model.config.vocab,
        )
        self.resident = resident_loop(self, self.execution)

    def _executor(self, planners: Sequence[Planner]) -> Executor:
        if not any(planner.name == "dflash" for planner in planners):
            return self.execution.executor
        return DrafterExecutor(self.runner, self.drafter or load_dflash(self.model))
