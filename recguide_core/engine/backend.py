"""From a back end's name to the executor of an engine: the one place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from recguide_core.engine import one_token_runner
from recguide_core.engine.readings import Executor
from recguide_core.engine.runner import TorchRunner
from recguide_core.kernels import backends, launch
from recguide_core.kernels.device_forward import Pools, geometry_of
from recguide_core.kernels.graphs import Capture, GraphCache
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.ops import RoundOps, TorchRoundOps
from recguide_core.kernels.resident_rounds import ResidentRounds
from recguide_core.kernels.round_state import BRANCHES
from recguide_core.kvcache import KVPool
from recguide_core.model.registry import LoadedModel

MakeRounds = Callable[[int, int], ResidentRounds]
"""(slots, decisions of e_t) -> the rounds of an engine."""
GRAPH_BYTES = 4 << 30
"""Device memory that all captured graphs may take together."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How an engine runs its steps.

    Attributes:
        executor: runs a step; runner: the torch runner that it falls back on.
        choice: back end and why not the others.
        graphs: counts of replayed and eager forwards, None for the torch back end.
        faults: what the self-test found; the executor is then the torch runner.
        resident: makes device-resident rounds of an engine, None where there are none.
    """

    executor: Executor
    runner: TorchRunner
    choice: backends.Choice
    graphs: GraphCache | None
    faults: list[str]
    resident: MakeRounds | None = None


def target_of(model: LoadedModel, page: int) -> backends.Target:
    """What a back end would have to run."""
    device, config = model.transformer.device, model.config
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    dtype = str(model.transformer.dtype).removeprefix("torch.")
    return backends.Target(
        device.type, dtype, config.head_dim, config.group, page, len(config.eos_ids), capability
    )


def execution_for(
    model: LoadedModel,
    pool: KVPool,
    requested: str | None = None,
    *,
    resident: bool | None = None,
    graphs: bool = True,
    graph_bytes: int = GRAPH_BYTES,
) -> Execution:
    """The executor of a back end, self-tested.

    Args:
        requested: name of a back end, None = the table's choice.
        resident: see `EngineSettings`.
        graphs: False runs every forward eagerly.

    Raises:
        UsageError: unknown back end. CapacityError: it cannot run here.
    """
    if requested == one_token_runner.NAME and model.transformer.device.type == "cpu":
        alone = one_token_runner.OneTokenRunner(model, pool)
        return Execution(alone, alone, backends.Choice(requested, {}), None, [])
    choice = backends.choose(target_of(model, pool.page_size), requested)
    torch_runner = TorchRunner(model, pool)
    if choice.name == "flashinfer":
        from recguide_core.engine.flashinfer_runner import FlashInferRunner

        runner = FlashInferRunner(model, pool)
        return Execution(runner, runner, choice, None, [])
    if choice.name == "triton":
        found = _triton(model, pool, torch_runner, choice, graphs, graph_bytes)
        return replace(found, resident=None) if resident is False else found
    if not resident:
        return Execution(torch_runner, torch_runner, choice, None, [])
    geometry = geometry_of(model.transformer, pool.page_size)
    cache = GraphCache(None, 0, lambda: 0)
    head = OutputHead(model.transformer.weights.head, launch.TOKEN_BUCKETS[-1])
    make = _rounds_of(model, pool, lambda tokens, requests: TorchRoundOps(geometry), head, cache)
    return Execution(torch_runner, torch_runner, choice, cache, [], make)


def _rounds_of(
    model: LoadedModel,
    pool: KVPool,
    make_ops: Callable[[int, int], RoundOps],
    head: OutputHead,
    cache: GraphCache,
) -> MakeRounds:
    def make(slots: int, decisions: int) -> ResidentRounds:
        return ResidentRounds(
            model.transformer,
            make_ops,
            Pools(pool.k, pool.v),
            head,
            cache,
            slots=slots,
            pages=pool.pages,
            page=pool.page_size,
            branches=BRANCHES,
            decisions=decisions,
        )

    return make


def _triton(
    model: LoadedModel,
    pool: KVPool,
    fallback: TorchRunner,
    choice: backends.Choice,
    graphs: bool,
    graph_bytes: int,
) -> Execution:
    from recguide_core.engine.fused_runner import FusedRunner
    from recguide_core.kernels import cuda, tiles
    from recguide_core.kernels.ops_triton import TritonRoundOps
    from recguide_core.kernels.workspace import Workspace

    device = model.transformer.device
    geometry = geometry_of(model.transformer, pool.page_size)
    adapter = model.transformer.adapter
    rank = 0 if adapter is None else len(adapter.down[0])
    processors = cuda.multiprocessors(device)
    tokens, requests = launch.TOKEN_BUCKETS[-1], launch.REQUEST_BUCKETS[-1]
    most = tiles.capacity(
        tokens, requests, geometry.group, launch.WIDE.block_m, geometry.kv_heads,
        launch.PROGRAMS_PER_SM * processors,
    )  # fmt: skip
    workspace = Workspace.sized(geometry, tokens, most.partials, device, rank)

    def make_ops(tokens: int, requests: int) -> TritonRoundOps:
        return TritonRoundOps(
            geometry, tokens, requests, device, processors, rank=rank, workspace=workspace
        )

    capture: Capture | None = cuda.CudaCapture() if graphs else None
    cache = GraphCache(capture, graph_bytes, cuda.memory_in_use, "graphs are switched off")
    runner = FusedRunner(model, pool, fallback, make_ops, cache)
    faults = runner.self_test()
    if faults:
        return Execution(fallback, fallback, choice, cache, faults)
    make = _rounds_of(model, pool, make_ops, runner.head, cache)
    return Execution(runner, fallback, choice, cache, [], make)
