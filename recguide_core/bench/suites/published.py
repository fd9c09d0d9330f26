"""Results of the paper that the suite stands beside: Tables 2, 4, 5, 6 and Figure 2(a)."""

from __future__ import annotations

CATEGORIES = ("math", "code", "qa")
CATEGORY_NAMES = ("Math", "Code", "QA & IF", "Overall")
LOADS = (2, 4, 8, 16, 32, 64, 128)
TABLE4_LOADS = (2, 8, 32, 128)

_SETS = (3, 3, 2)


def by_category(values: tuple[float, ...]) -> tuple[float, float, float, float]:
    """Means of the eight benchmarks per category, and overall."""
    out, first = [], 0
    for count in _SETS:
        out.append(sum(values[first : first + count]) / count)
        first += count
    return out[0], out[1], out[2], sum(values) / len(values)


TAU = {
    "nld-8b": {
        "linear": by_category((9.94, 11.21, 10.49, 9.71, 8.15, 9.78, 10.62, 9.57)),
        "dflash": by_category((4.26, 4.31, 4.90, 4.28, 3.78, 4.64, 5.11, 3.90)),
        "tidar": by_category((13.44, 15.80, 14.54, 12.92, 9.18, 13.48, 15.18, 12.52)),
        "overlap": by_category((13.95, 16.08, 15.68, 13.64, 11.08, 13.54, 14.84, 13.33)),
    },
    "nld-14b": {
        "linear": by_category((9.74, 10.50, 9.35, 11.99, 10.81, 9.27, 10.79, 8.35)),
        "dflash": by_category((4.78, 4.37, 3.81, 4.93, 5.49, 4.14, 5.28, 3.80)),
        "tidar": by_category((13.10, 16.24, 13.90, 17.72, 15.80, 13.26, 17.24, 12.20)),
        "overlap": by_category((13.61, 15.43, 13.41, 18.19, 12.56, 13.27, 16.21, 10.97)),
    },
}
"""Table 2: tau per two forwards."""

SPEEDUP = {
    "nld-8b": {"linear": 2.68, "dflash": 2.89, "tidar": 2.42, "overlap": 4.06},
    "nld-14b": {"linear": 2.95, "dflash": 3.03, "tidar": 2.89, "overlap": 4.40},
}
"""Table 2: over autoregressive decoding, overall."""

TABLE5 = {
    "nld-8b": {"linear": 595.0, "first": 799.0, "second": 811.0, "continuation": 903.0},
    "nld-14b": {"linear": 470.0, "first": 605.0, "second": 612.0, "continuation": 702.0},
}
TABLE6 = {
    "nld-8b": {"fixed": 4725.0, "entropy": 5221.0, "outcome": 5254.0, "bucketed": 6608.0},
    "nld-14b": {"fixed": 3756.0, "entropy": 4041.0, "outcome": 4071.0, "bucketed": 4987.0},
}

AR_TPS = {name: TABLE5[name]["continuation"] / SPEEDUP[name]["overlap"] for name in TABLE5}
"""Tokens a second of plain AR that the speed-ups imply."""

_TABLE4 = {
    "nld-8b": {
        2: ((3.61, 1.28, 95.11), (4.63, 1.51, 93.86), (24.97, 5.97, 69.07), (9.33, 2.54, 88.13)),
        8: ((0.63, 26.91, 72.46), (0.66, 39.18, 60.16), (12.85, 48.73, 38.43),
            (3.70, 36.96, 59.34)),
        32: ((28.83, 52.95, 18.22), (40.45, 47.70, 11.86), (60.76, 22.35, 16.89),
             (41.17, 43.33, 15.50)),
        128: ((72.46, 17.25, 10.30), (82.03, 11.11, 6.87), (81.12, 5.65, 13.23),
              (78.21, 12.04, 9.75)),
    },
    "nld-14b": {
        2: ((1.40, 3.11, 95.49), (0.32, 1.92, 97.76), (12.14, 12.83, 75.03), (3.68, 5.09, 91.23)),
        8: ((0.56, 42.26, 57.18), (0.04, 37.14, 62.82), (6.27, 58.77, 34.97), (1.79, 44.47, 53.74)),
        32: ((28.31, 63.75, 7.94), (20.26, 69.51, 10.23), (56.77, 31.81, 11.43),
             (32.40, 57.92, 9.67)),
        128: ((84.07, 11.56, 4.37), (83.80, 10.21, 5.99), (83.41, 5.94, 10.66),
              (83.81, 9.65, 6.55)),
    },
}  # fmt: skip


def table4(model: str, load: int, category: int, place: int) -> float:
    """Percent of requests with the menu's block `place` (8, 16, 32); category 3 = overall."""
    return float(_TABLE4[model][load][category][place])


FIGURE2A = (0.5403, 0.1724, 0.2872)
"""Shares of A <= 8, 8 < A <= 16, A > 16 at B = 32: the stationary ones of Table 1. The figure's
text says "over half" and "nearly 30 %"."""
