"""A made-up but complete policy for a model: value, branch and cost table, and the policy file.

The numbers are chosen so that every block of the menu is somebody's best and branches pay.
"""

import numpy as np

from recguide_core.inventory import cpu_name
from recguide_core.policy.branch_table import MARGIN_EDGES, BranchTable
from recguide_core.policy.branches import BRANCHES
from recguide_core.policy.value import ANY, NO_HISTORY, Stratum, ValueTable
from recguide_core.records import MAX_BLOCK
from recguide_core.tables import make_table, write_policy, write_table
from recguide_core.tables.shipped import SUFFIX

MENU = (1, 4, 8, 16, 32)
NAME = "cpu-nld-tiny"


def _survival(keep):
    """P(A >= k) = keep^(k - 1) for each block, cut at B: [menu, MAX_BLOCK]."""
    k = np.arange(MAX_BLOCK)
    return np.stack([np.where(k < b, keep**k, 0.0) for b in MENU])


def value_table():
    """Certain requests (s near 0) keep 97 %, uncertain ones 55 %; a full block adds a little."""
    strata = []
    edges = np.array([-1.2, -0.6, -0.25])
    for lagged in (False, True):
        for prev, full in [(ANY, False), (NO_HISTORY, False)] + [
            (b, f) for b in MENU for f in (False, True)
        ]:
            keeps = np.array([0.55, 0.75, 0.9, 0.97, 0.85]) + 0.02 * full
            curve = np.stack([_survival(k) for k in keeps])
            strata.append(
                Stratum(prev, full, lagged, edges, curve, np.ones(curve.shape[:2]),
                        np.full(curve.shape[:2], 50))
            )  # fmt: skip
    return ValueTable(MENU, strata)


def branch_table(delta):
    blocks = np.array([b for b in MENU if b > 1])
    shape = (len(blocks), 2, BRANCHES, len(MARGIN_EDGES) + 1)
    return BranchTable(delta, blocks, np.full(shape, 0.35), np.full(shape, 40))


def cost_columns():
    """T = 4 ms + 0.03 ms a token + 0.02 ms a request, for every kind."""
    rows = []
    for kind in ("prefill", "ar", "draft", "verify", "fused", "mixed"):
        for n in (1, 2, 4, 8, 16):
            for width in (1,) if kind == "ar" else (1, 4, 8, 16, 32, 64):
                rows.append(
                    (kind, n, n * width, n * 256, width, 0, 4 + 0.03 * n * width + 0.02 * n)
                )
    names = ["kind", "requests", "query_tokens", "kv_tokens", "block_size", "branches", "mean_ms"]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    columns |= {"std_ms": [0.1] * len(rows), "count": [5] * len(rows)}
    return columns | {"origin": ["modelled"] * len(rows)}


def write_policy_files(folder, model_hash, delta=0.5):
    """Write all four artefacts; returns the policy file's path."""
    common = {
        "model": "nld-tiny", "model_hash": model_hash, "device": "cpu", "date": "2026-01-01",
        "source": "made up for a test", "data": "none", "requests": "1", "rounds": "1",
    }  # fmt: skip
    extra = {
        "value": {"folds": "2", "recipe": "test"},
        "branch": {},
        "cost": {
            "device": f"cpu: {cpu_name()}",
            "dtype": "float32",
            "attention": "torch",
            "graph": "eager",
            "seed": "0",
        },
    }
    columns = {
        "value": value_table().to_columns(),
        "branch": branch_table(delta).to_columns(),
        "cost": cost_columns(),
    }
    hashes = {}
    for kind, content in columns.items():
        about = {**common, **extra[kind]}
        path = folder / f"{NAME}{SUFFIX[kind]}"
        hashes[f"{kind}_hash"] = write_table(path, make_table(kind, content, about))
    path = folder / f"{NAME}{SUFFIX['policy']}"
    settings = {
        "delta": delta, "corrections": 2, "continuation": True, "block": 8, "menu": list(MENU),
        "entropy_positions": "all", "rho": {"1": 0.6, "8": 0.9},
        "overlap": {"1": {"8": [0.3, 1.5], "16": [0.3, 2.0]}},
    }  # fmt: skip
    about = {
        "model": "nld-tiny", "model_hash": model_hash, "device": "cpu", **hashes,
        "tables": dict.fromkeys(columns, NAME),
    }  # fmt: skip
    write_policy(path, settings, about)
    return path
