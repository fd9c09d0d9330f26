"""From a configuration to a warm engine: model, methods with their tables, start-up report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from recguide_core.engine.drafter import load_dflash
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import METHODS, NEEDS_GUIDANCE, Planner, check_method
from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError, RecGuideError
from recguide_core.model.registry import LoadedModel, load_model
from recguide_core.records import Request
from recguide_core.serving.runtime import ServedEngine
from recguide_core.tuning.guidance import Tuned, load_tuned

AUTO = "auto"
WITHOUT_TABLES = "overlap"
WARM_PROMPT = 16
WARM_TOKENS = 24


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """What to serve with.

    Attributes:
        method: default method; "auto" is recguide where a policy is found, else overlap.
        block_size: B of methods with a fixed block.
        policy: policy file; None looks for the model's. force: accept one that does not fit.
    """

    model: str = "nld-tiny"
    method: str = AUTO
    block_size: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    policy: Path | None = None
    force: bool = False
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if self.method != AUTO:
            check_method(self.method)


def launch(config: LaunchConfig) -> ServedEngine:
    """Load, build and warm the embedded engine.

    Raises:
        RecGuideError: the model cannot be loaded, or the method lacks its tables.
    """
    began = time.perf_counter()
    model = load_model(config.model, device=config.device, dtype=config.dtype)
    loaded = time.perf_counter()
    tuned, remarks = find_policy(model, config)
    settings = config.engine
    if tuned is not None:
        settings = replace(settings, entropy_positions=tuned.positions)
    planners = all_planners(model, config, tuned)
    default = default_method(config, planners)
    order = [default, *(name for name in planners if name != default)]
    engine = Engine(model, planners=[planners[name] for name in order], settings=settings)
    built = time.perf_counter()
    warm_up(engine)
    return ServedEngine(
        model=model,
        engine=engine,
        methods={name: place for place, name in enumerate(order)},
        default_method=default,
        artefacts=dict(tuned.guidance.hashes) if tuned is not None else {},
        remarks=tuple(remarks),
        report={
            "load_seconds": round(loaded - began, 3),
            "build_seconds": round(built - loaded, 3),
            "warm_up_seconds": round(time.perf_counter() - built, 3),
            "weight_bytes": weight_bytes(model),
            "kv_bytes": sum(t.numel() * t.element_size() for t in engine.pool.k + engine.pool.v),
        },
    )


def find_policy(model: LoadedModel, config: LaunchConfig) -> tuple[Tuned | None, list[str]]:
    """The policy that the adaptive methods need, and remarks on it.

    None with the reason when there is none and nobody insists on one.
    """
    try:
        tuned = load_tuned(
            config.model, model.hash, config.device, policy=config.policy, force=config.force
        )
    except DataError as error:
        if config.policy is not None or config.method in NEEDS_GUIDANCE:
            raise
        return None, [f"Without a policy: {error.cause}"]
    return tuned, tuned.notes


def all_planners(
    model: LoadedModel, config: LaunchConfig, tuned: Tuned | None
) -> dict[str, Planner]:
    """Every method that a request may ask for on this server."""
    guidance = tuned.guidance if tuned is not None else None
    found: dict[str, Planner] = {}
    for name in METHODS:
        if name in NEEDS_GUIDANCE and guidance is None:
            continue
        if name == "dflash" and not _has_drafter(model):
            continue
        found[name] = make_planner(name, config.block_size, guidance, config.engine.batching)
    return found


def _has_drafter(model: LoadedModel) -> bool:
    try:
        load_dflash(model)
    except RecGuideError:
        return False
    return True


def default_method(config: LaunchConfig, planners: dict[str, Planner]) -> str:
    """The method of requests that name none.

    Raises:
        DataError: it is not available for this model.
    """
    if config.method == AUTO:
        return "recguide" if "recguide" in planners else WITHOUT_TABLES
    if config.method not in planners:
        raise DataError(
            f"The method '{config.method}' is not available for {config.model}.",
            f"Available: {', '.join(planners)}.",
        )
    return config.method


def warm_up(engine: Engine) -> None:
    """One short answer by every method, so that no client pays for first calls."""
    prompt = np.full(WARM_PROMPT, min(engine.model.config.vocab - 1, 10), dtype=np.int64)
    for place in range(len(engine.planners)):
        budget = min(WARM_TOKENS, engine.context - WARM_PROMPT)
        request = Request(f"warm-up/{place}", prompt, budget, ignore_eos=True, planner=place)
        engine.submit(request)
        engine.run()
    engine.counters = type(engine.counters)()


def weight_bytes(model: LoadedModel) -> int:
    """Bytes of the transformer's weights, adapter apart."""
    weights = model.transformer.weights
    tensors = [weights.embed, weights.norm, weights.head]
    for layer in weights.layers:
        tensors += [layer.attn_norm, layer.qkv, layer.o, layer.mlp_norm, layer.gate_up, layer.down]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
