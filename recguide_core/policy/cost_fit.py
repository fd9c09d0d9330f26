"""A physical law of forward time, fitted to a cost table, with the residual kept as correction.

    T = L + max_p(W / bandwidth, F q / (eff peak)) + r (n + branches)
          + c (1 - exp(-(n / n0)^2)) + KV reads + attention FLOPs

L launches and the work that every forward repeats; W weight bytes; F FLOPs a token; q query
tokens; n requests; max_p the p-norm, which is the utilisation curve between the two roofs; the
c term is the longest context of the batch: with unequal contexts the attention kernel waits for
it, and a handful of requests nearly always holds a long one. What the law leaves over is kept as
a Gaussian-process correction in log time over (log q, log n). Knows shapes and milliseconds, no
files.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recguide_core.errors import DataError
from recguide_core.policy.cost import AR, DRAFT, KINDS, MIXED, VERIFY, Milliseconds, Shapes
from recguide_core.policy.devices import Gpu, ModelSize

Floats = npt.NDArray[np.float64]

READ_EFFICIENCY = 0.85
"""Share of the bandwidth that a stream of weights reaches."""
KV_EFFICIENCY = 0.8
"""Share of the bandwidth that reading cached K/V by pages reaches; the profiles cannot tell it
apart from the per-request term, because their contexts do not vary at fixed n."""

_EFFICIENCIES = np.arange(0.30, 0.92, 0.02)
_POWERS = (1.5, 2.0, 3.0, 4.0)
_LONG = (2.0, 2.5, 3.0, 4.0, 6.0)

# Kernel of the correction: smooth parts in tokens and in requests, and a local one.
_REACH_TOKENS, _REACH_REQUESTS, _REACH_LOCAL = 0.3, 0.3, 0.15
_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Law:
    """Parameters of the physical law, ms per layer where it says so.

    Attributes:
        launch: ms per layer and forward (L); `row`: ms per layer and attention row (r).
        context: ms per layer (c) and `long` = n0, the requests that bring a long context.
        efficiency: share of peak FLOPs that large products reach; `power` = p.
    """

    launch: float
    row: float
    context: float
    long: float
    efficiency: float
    power: float


CARRIED = Law(launch=0.070, row=0.0008, context=0.125, long=3.5, efficiency=0.52, power=2.0)
"""Rounded from the fits of NLD-8B and 14B on B200; stands in on GPUs that nobody profiled."""
IDEAL = Law(launch=0.0, row=0.0, context=0.0, long=3.5, efficiency=1.0, power=64.0)
"""Peaks only: no launches, no attention overhead."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Residual of the law in log time: weights of the kernel at the fitted points."""

    log_requests: Floats
    log_tokens: Floats
    weight: Floats

    def factor(self, n: Floats, q: Floats) -> Floats:
        """Factor on the law's time, float64 [m].

        Outside the fitted range of requests, or of tokens per request, the nearest fitted value
        holds, so that there the time keeps the order of the law: plain AR never costs more than
        the smallest measured block, a fused forward never less than the largest.
        """
        log_width = self.log_tokens - self.log_requests
        log_n = np.clip(np.log(n), self.log_requests.min(), self.log_requests.max())
        width = np.clip(np.log(q / n), log_width.min(), log_width.max())
        kernel = _kernel(log_n, log_n + width, self.log_requests, self.log_tokens)
        return np.asarray(np.exp(kernel @ self.weight), np.float64)


class FittedCost:
    """`CostModel` by the law, corrected where it was measured.

    Args:
        law, gpu, size: see `Law`, `Gpu`, `ModelSize`.
        correction: residual of the fit, or None.
        measured: the fitted points, int64 [m, 2] of requests and query tokens.
        kind_factor: factor of each kind (index into `KINDS`) on the common time.
    """

    def __init__(
        self,
        law: Law,
        gpu: Gpu,
        size: ModelSize,
        correction: Correction | None = None,
        measured: npt.NDArray[np.int64] | None = None,
        kind_factor: Floats | None = None,
    ) -> None:
        self.law, self.gpu, self.size = law, gpu, size
        self.correction = correction
        self.measured = np.empty((0, 2), np.int64) if measured is None else measured
        self.kind_factor = np.ones(len(KINDS)) if kind_factor is None else kind_factor
        self._points = {(int(n), int(q)) for n, q in self.measured}

    @classmethod
    def fit(cls, columns: Mapping[str, npt.ArrayLike], gpu: Gpu, size: ModelSize) -> FittedCost:
        """Fit to the draft and verify rows of a cost table.

        Raises:
            DataError: fewer than a dozen measured shapes.
        """
        n, q, kv, ms, ratio = _measured(columns)
        law = _fit_law(gpu, size, n, q, kv, ms)
        rough = cls(law, gpu, size)
        residual = np.log(ms / rough._common(n, q, kv))
        log_n, log_q = np.log(n), np.log(q)
        kernel = _kernel(log_n, log_q, log_n, log_q) + _NOISE * np.eye(len(n))
        weight = np.asarray(np.linalg.solve(kernel, residual), np.float64)
        factor = np.ones(len(KINDS))
        factor[DRAFT], factor[VERIFY] = ratio, 2.0 - ratio
        factor[AR] = factor[VERIFY]
        points = np.stack([n, q], axis=1).astype(np.int64)
        return cls(law, gpu, size, Correction(log_n, log_q, weight), points, factor)

    def ms(self, shapes: Shapes) -> Milliseconds:
        """Milliseconds of each forward, float64 [m]."""
        fixed, per_kv = self.terms(shapes)
        return fixed + per_kv * shapes.kv_tokens

    def terms(self, shapes: Shapes) -> tuple[Floats, Floats]:
        """The price as `fixed + per_kv x kv_tokens`, each float64 [m]; the rest of a shape
        repeats from step to step while kv_tokens grows, so a clock caches these."""
        n = np.maximum(shapes.requests, 1).astype(np.float64)
        q = np.maximum(shapes.query_tokens, 1).astype(np.float64)
        fixed, per_kv = _law_terms(self.law, self.gpu, self.size, n, q, shapes.branches)
        factor = self.kind_factor[shapes.kind]
        if self.correction is not None:
            factor = factor * self.correction.factor(n, q)
        return factor * fixed, factor * per_kv

    def origin(self, shapes: Shapes) -> list[str]:
        """`measured`, `interpolated` or `modelled` for each forward.

        Interpolated: inside the measured range of requests and of tokens per request, without
        branch rows. A fused forward, plain AR and blocks below the smallest timed one are modelled.
        """
        if not len(self.measured):
            return ["modelled"] * len(shapes.kind)
        width = self.measured[:, 1] / self.measured[:, 0]
        low, high, most = width.min(), width.max(), self.measured[:, 0].max()
        labels = []
        for kind, n, q, branches in zip(
            shapes.kind, shapes.requests, shapes.query_tokens, shapes.branches, strict=True
        ):
            plain = kind in (DRAFT, VERIFY, MIXED) and not branches
            if plain and kind != MIXED and (int(n), int(q)) in self._points:
                labels.append("measured")
            elif plain and n <= most and low <= q / max(n, 1) <= high:
                labels.append("interpolated")
            else:
                labels.append("modelled")
        return labels

    def _common(self, n: Floats, q: Floats, kv: Floats) -> Floats:
        fixed, per_kv = _law_terms(self.law, self.gpu, self.size, n, q, np.zeros(len(n)))
        return fixed + per_kv * kv


def roofline(gpu: Gpu, size: ModelSize, law: Law = CARRIED) -> FittedCost:
    """Price on a GPU without a profile: published peaks with the overheads carried over from
    the B200 fits (`CARRIED`), or with none (`IDEAL`). Everything is labelled modelled."""
    return FittedCost(law, gpu, size)


def _law_terms(
    law: Law, gpu: Gpu, size: ModelSize, n: Floats, q: Floats, branches: npt.ArrayLike
) -> tuple[Floats, Floats]:
    rows = n + np.asarray(branches, np.float64)
    context = 1.0 - np.exp(-np.square(n / law.long))
    overhead = size.layers * (law.launch + law.row * rows + law.context * context)
    return overhead + _product_ms(law, gpu, size, q), _kv_ms(law, gpu, size, q / n)


def _product_ms(law: Law, gpu: Gpu, size: ModelSize, q: Floats) -> Floats:
    read = size.weight_bytes / (gpu.bandwidth * READ_EFFICIENCY) * 1e3
    compute = size.token_flops * q / (gpu.flops * law.efficiency) * 1e3
    high = np.maximum(read, compute)
    low = np.minimum(read, compute) / high
    return np.asarray(high * (1.0 + low**law.power) ** (1.0 / law.power), np.float64)


def _kv_ms(law: Law, gpu: Gpu, size: ModelSize, width: Floats) -> Floats:
    read = size.kv_bytes / (gpu.bandwidth * KV_EFFICIENCY) * 1e3
    return read + size.pair_flops * width / (gpu.flops * law.efficiency) * 1e3


def _fit_law(gpu: Gpu, size: ModelSize, n: Floats, q: Floats, kv: Floats, ms: Floats) -> Law:
    best: tuple[float, Law] | None = None
    for efficiency, power, long in itertools.product(_EFFICIENCIES, _POWERS, _LONG):
        trial = Law(0.0, 0.0, 0.0, long, float(efficiency), power)
        known, per_kv = _law_terms(trial, gpu, size, n, q, np.zeros(len(n)))
        known = known + per_kv * kv
        terms = size.layers * np.stack(
            [np.ones_like(n), n, 1.0 - np.exp(-np.square(n / long))], axis=1
        )
        weight = _nonnegative(terms / ms[:, None], 1.0 - known / ms)
        error = float(np.mean(np.square((terms @ weight + known) / ms - 1.0)))
        if best is None or error < best[0]:
            launch, row, context = (float(w) for w in weight)
            best = error, Law(launch, row, context, long, float(efficiency), power)
    assert best is not None
    return best[1]


def _nonnegative(a: Floats, b: Floats) -> Floats:
    """Least squares with the negative weights dropped one by one."""
    weight = np.zeros(a.shape[1])
    used = np.ones(a.shape[1], bool)
    while used.any():
        found = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
        if found.min() >= 0:
            weight[used] = found
            break
        used[np.flatnonzero(used)[int(found.argmin())]] = False
    return weight


def _kernel(log_n: Floats, log_q: Floats, at_n: Floats, at_q: Floats) -> Floats:
    dn = np.abs(log_n[:, None] - at_n[None, :])
    dq = np.abs(log_q[:, None] - at_q[None, :])
    local = np.exp(-(dn + dq) / _REACH_LOCAL)
    return np.asarray(np.exp(-dq / _REACH_TOKENS) + np.exp(-dn / _REACH_REQUESTS) + local)


def _measured(
    columns: Mapping[str, npt.ArrayLike],
) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Requests, tokens, kv, mean of draft and verify, and draft's share of that mean."""
    kind = np.asarray(columns["kind"])
    keep = np.isin(kind, ("draft", "verify"))
    if "origin" in columns:
        keep &= np.asarray(columns["origin"]) == "measured"
    names = ("requests", "query_tokens", "kv_tokens", "mean_ms")
    n, q, kv, ms = (np.asarray(columns[name], np.float64)[keep] for name in names)
    points, where = np.unique(np.stack([n, q], 1), axis=0, return_inverse=True)
    if len(points) < 12:
        raise DataError(
            f"A cost table with {len(points)} measured shapes cannot carry a fit.",
            "Profile at least 12 shapes, or use the table as it is.",
        )
    where = where.ravel()
    count = np.bincount(where)
    mean = np.bincount(where, ms) / count
    draft = kind[keep] == "draft"
    ratio = float(np.mean(ms[draft] / mean[where[draft]])) if draft.any() else 1.0
    return points[:, 0], points[:, 1], np.bincount(where, kv) / count, mean, ratio
