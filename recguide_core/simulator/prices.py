"""What forwards cost on a named GPU and model, and virtual clocks by name (`b200/nld-8b`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from recguide_core.engine.virtual import VirtualClock
from recguide_core.errors import UsageError, nearest
from recguide_core.policy.cost_fit import FittedCost, roofline
from recguide_core.policy.devices import GPUS, MODELS, ModelSize, gpu, model_size
from recguide_core.policy.host import NO_HOST, HostTime
from recguide_core.tables import read_table, shipped_names, shipped_path

SERVING_HOST = HostTime(step=5.75, request=0.418)
"""Fitted to the public 14B serving table (SGLang native, B200): 36 cells of five sets with at
least 4 C requests, throughput within 6 % (median) and 17 % (worst). Holds prompt passes and tails
as well; `tests/unit/test_host.py` refits it."""

DRAFTER_LAYERS = 5
"""Depth of a DFlash drafter as published for 8B targets."""


@dataclass(frozen=True, slots=True)
class Priced:
    """Prices of one model on one GPU.

    Attributes:
        cost: of the model; `drafter`: of a DFlash drafter beside it, modelled.
        source: `measured profile` or `published peaks`; `digest`: of the cost table, or empty.
    """

    name: str
    cost: FittedCost
    drafter: FittedCost
    source: str
    digest: str


@cache
def priced(gpu_name: str, model_name: str) -> Priced:
    """Prices from the shipped profile, else from the GPU's published peaks.

    Raises:
        UsageError: unknown GPU or model.
    """
    device, size = gpu(gpu_name), model_size(model_name)
    name = f"{gpu_name}/{model_name}"
    if name.replace("/", "-") in shipped_names("cost"):
        table = read_table(shipped_path(name, "cost"), "cost")
        cost = FittedCost.fit(table.columns, device, size)
        source, digest = "measured profile", table.digest
    else:
        cost, source, digest = roofline(device, size), "published peaks", ""
    drafter = FittedCost(cost.law, device, _drafter_size(size))
    return Priced(name, cost, drafter, source, digest)


def _drafter_size(size: ModelSize) -> ModelSize:
    """The first few layers of the model with its output head."""
    share = DRAFTER_LAYERS / size.layers
    head = size.head_bytes
    weights = head + share * (size.weight_bytes - head)
    return replace(
        size,
        name=f"{size.name} drafter",
        layers=DRAFTER_LAYERS,
        weight_bytes=weights,
        token_flops=weights,
        kv_bytes=size.kv_bytes * share,
        pair_flops=size.pair_flops * share,
    )


def named_clock(
    name: str, host: HostTime = NO_HOST, *, context: int = 0, padded: bool = False
) -> VirtualClock:
    """The virtual clock `<gpu>/<model>`, e.g. `b200/nld-8b`.

    Args:
        host: milliseconds beside the forwards; context, padded: see `VirtualClock`.

    Raises:
        UsageError: not of that form, or an unknown GPU or model.
    """
    device, slash, model = name.partition("/")
    if not slash or not model:
        known = [f"{g}/{m}" for g in GPUS for m in MODELS]
        raise UsageError(f"'{name}' is no clock.", nearest(name, known))
    prices = priced(device, model)
    return VirtualClock(
        prices.cost, host, prices.name, context=context, drafter=prices.drafter, padded=padded
    )
