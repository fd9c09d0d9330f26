"""Time of a step outside the forward: what the host adds per step and per request.

Fitted to serving tables, where a step is inferred from throughput: with C requests in flight a
forward yields C x TPF tokens, so its step lasts C x TPF / TPS. What the graph replay does not
explain is host time; it contains the prompt passes and the tail of the run, which such a table
cannot separate. `profiling.host` measures it instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from recguide_core.policy.cost import CostModel, Milliseconds, Shapes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostTime:
    """Milliseconds beside the forward: `step` each step and `request` for each request in it."""

    step: float = 0.0
    request: float = 0.0

    def ms(self, requests: npt.ArrayLike) -> Floats:
        """Host milliseconds of steps with that many requests, float64 [n]."""
        return self.step + self.request * np.asarray(requests, np.float64)


NO_HOST = HostTime()


class HostedCost:
    """A cost model with what a policy must weigh as well: the host's time in every step, and the
    committed tokens that the clock charges beyond a request's own.

    Args:
        context: those tokens of each request.
    """

    def __init__(self, model: CostModel, host: HostTime, context: int = 0) -> None:
        self.model = model
        self.host = host
        self.context = context

    def ms(self, shapes: Shapes) -> Milliseconds:
        charged = replace(shapes, kv_tokens=shapes.kv_tokens + self.context * shapes.requests)
        return self.model.ms(charged) + self.host.ms(shapes.requests)


@dataclass(frozen=True, slots=True)
class HostFit:
    """A fitted `HostTime` and how well it explains the table.

    Attributes:
        error: relative error of the predicted throughput per row, float64 [n].
    """

    host: HostTime
    error: Floats

    @property
    def median(self) -> float:
        return float(np.median(np.abs(self.error)))

    @property
    def worst(self) -> float:
        return float(np.abs(self.error).max())


def fit_host(
    concurrency: npt.ArrayLike, tpf: npt.ArrayLike, tps: npt.ArrayLike, forward_ms: npt.ArrayLike
) -> HostFit:
    """Host time that explains a serving table best, least squares in relative step time.

    Args:
        concurrency: C; `tpf`: returned tokens per forward; `tps`: tokens per second of the
            system; `forward_ms`: mean of the draft and the verify forward; all [n].
    """
    c, per_forward, speed, forward = (
        np.asarray(x, np.float64) for x in (concurrency, tpf, tps, forward_ms)
    )
    step = c * per_forward / speed * 1e3
    terms = np.stack([np.ones_like(c), c], axis=1) / step[:, None]
    fixed, each = np.linalg.lstsq(terms, 1.0 - forward / step, rcond=None)[0]
    host = HostTime(max(float(fixed), 0.0), max(float(each), 0.0))
    return HostFit(host, step / (forward + host.ms(c)) - 1.0)
