"""Published figures that the acceptance model is fitted to, or held against.

Sources: the paper's Tables 1 to 6, and the public research notes on the same models (shadow runs,
traces, AUROCs). Numbers only; nothing here was measured by this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

CATEGORIES = ("math", "code", "qa")
SETS_PER_CATEGORY = (3, 3, 2)

TABLE1 = np.array([[0.7030, 0.1811, 0.1160], [0.5839, 0.2242, 0.1919], [0.2083, 0.1251, 0.6666]])
"""NLD-8B, B = 32: P(interval of A_{t+1} | interval of A_t) for [1,8], (8,16], (16,32]."""

FULL32_GIVEN_OVER16 = 0.2723 / 0.3994
"""P(A_32 = 32 | A_32 > 16) in the six-set shadow run on B = 16 histories."""

RISKY_PASSED = 0.05
"""Share of passed draft tokens with a margin below 0.5: in the public traces 5 to 7 % of the
accepted tokens have a confidence below 0.65 to 0.70. Held fixed, not fitted."""

SHADOW = {4: 3.669, 8: 6.357, 16: 10.219, 32: 15.500}
"""Mean A_B on B = 16 histories, six sets, 8B."""
SHADOW_FULL = {4: 0.8151, 8: 0.5973, 16: 0.4056, 32: 0.2723}
SHADOW_OVER16 = 0.3994
NINE_SETS = {8: 5.777, 16: 8.533, 32: 11.359}
"""Mean A_B on the histories of a B = 8 biased policy, nine sets with MMLU, 8B."""
SERVING_14B = {8: 2 * 3.335, 16: 2 * 5.12, 32: 2 * 6.48}
"""tau of the 14B serving table, mean of eight sets over its concurrencies."""
ACCEPT_CORRELATION = {32: 0.544, 16: 0.482, 8: 0.383}
"""Pearson correlation of A_t with A_{t+1}, by B."""
AUROC = {"16 over 8": 0.7905, "32 over 8": 0.8170, "32 over 16": 0.8423}
"""Held-out AUROC of "the larger block is worth it" from verification history."""
WORTH = {"16 over 8": (8, 16, 2), "32 over 8": (8, 32, 5), "32 over 16": (16, 32, 5)}
"""Worth it: the larger block gains at least so many tokens."""
EXPLORATION = {8: (0.55, 0.35, 0.10), 16: (0.25, 0.50, 0.25), 32: (0.10, 0.35, 0.55)}
"""Next B in 8, 16, 32 by the present one, in the runs behind the AUROCs."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper says of one model.

    Attributes:
        tau16: LinearSS tau at B = 16 by category and overall (Table 2).
        tau_tidar, tau_dflash: tau per two forwards, overall (Table 2).
        tau_overlap: RecGuide's tau, overall (Table 2).
        correction, continuation: (coverage, reuse) in shares of rounds by category, and
            `no_hit` (Table 3).
    """

    tau16: Mapping[str, float]
    tau_tidar: float
    tau_dflash: float
    tau_overlap: float
    correction: Mapping[str, tuple[float, float]]
    continuation: Mapping[str, tuple[float, float]]
    no_hit: Mapping[str, float]


PUBLISHED = {
    "nld-8b": Published(
        tau16={
            "math": (9.94 + 11.21 + 10.49) / 3,
            "code": (9.71 + 8.15 + 9.78) / 3,
            "qa": (10.62 + 9.57) / 2,
            "all": 9.93,
        },
        tau_tidar=13.38,
        tau_dflash=4.40,
        tau_overlap=14.02,
        correction={
            "math": (0.3246, 0.2146),
            "code": (0.4163, 0.2581),
            "qa": (0.3331, 0.1725),
            "all": (0.3611, 0.2204),
        },
        continuation={
            "math": (0.4385, 0.4292),
            "code": (0.2789, 0.2714),
            "qa": (0.4855, 0.4788),
            "all": (0.3904, 0.3824),
        },
        no_hit={"math": 0.2368, "code": 0.3048, "qa": 0.1814, "all": 0.2485},
    ),
    "nld-14b": Published(
        tau16={
            "math": (9.74 + 10.50 + 9.35) / 3,
            "code": (11.99 + 10.81 + 9.27) / 3,
            "qa": (10.79 + 8.35) / 2,
            "all": 10.10,
        },
        tau_tidar=14.94,
        tau_dflash=4.58,
        tau_overlap=14.21,
        correction={
            "math": (0.3237, 0.2198),
            "code": (0.3099, 0.2038),
            "qa": (0.3544, 0.1861),
            "all": (0.3262, 0.2054),
        },
        continuation={
            "math": (0.3712, 0.3595),
            "code": (0.4381, 0.3653),
            "qa": (0.3922, 0.3888),
            "all": (0.4015, 0.3690),
        },
        no_hit={"math": 0.3051, "code": 0.2520, "qa": 0.2533, "all": 0.2722},
    ),
}
