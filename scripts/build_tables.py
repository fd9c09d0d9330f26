"""Build the shipped B200 cost tables and acceptance models from the published figures.

    python scripts/build_tables.py DATA_DIR [--out tables]

DATA_DIR holds `profiles/b200-<model>.csv`. Writes `b200-<model>.cost.arrow` and
`<model>.acceptance.json`, and prints the held-out errors of the cost fit and which figures of the
acceptance model were fitted and which are predicted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from recguide_core import acceptance
from recguide_core.policy.cost_check import held_out
from recguide_core.policy.cost_fit import FittedCost
from recguide_core.policy.devices import gpu, model_size
from recguide_core.tables import write_table
from recguide_core.tables.profiles import profile_table, size_hash

DEVICE = "b200"
MODELS = {
    "nld-8b": {
        "date": "2026-09-07",
        "source": "linyewei526/Nemotron-Labs-Diffusion "
        "configs/NLD_B200_B8_B32_forward_sweep_20260907_zh.md (2daed19a4d51)",
        "torch": "2.11.0+cu130",
    },
    "nld-14b": {
        "date": "2026-09-12",
        "source": "linyewei526/Nemotron-Labs-Diffusion "
        "configs/NLD-14B_B200_forward_sweep.md (35535854a9e2)",
        "torch": "2.11.0+cu130",
    },
}
COMMON = {
    "dtype": "bfloat16",
    "attention": "flashinfer, page size 1 (SGLang native LinearSpec)",
    "graph": "one CUDA graph per batch size, replay only",
    "driver": "unknown",
    "triton": "unknown",
    "seed": "unknown",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("tables"))
    options = parser.parse_args()
    for name, about in MODELS.items():
        build_cost(name, about, options.data, options.out)
    for name in MODELS:
        build_acceptance(name, options.out)


def build_cost(name: str, about: dict[str, str], data: Path, out: Path) -> None:
    size, device = model_size(name), gpu(DEVICE)
    profile = data / "profiles" / f"{DEVICE}-{name}.csv"
    table = profile_table(profile, size, DEVICE, {**COMMON, **about})
    digest = write_table(out / f"{DEVICE}-{name}.cost.arrow", table)
    print(f"{DEVICE}/{name} cost table: {len(table)} rows, {digest[:12]}")
    print(f"  law: {FittedCost.fit(table.columns, device, size).law}")
    for check in held_out(table.columns, device, size):
        print(
            f"  left out {check.name}: median {check.median:.1%} worst {check.worst:.1%} "
            f"(plain interpolation {check.plain_median:.1%} / {check.plain_worst:.1%})"
        )


def build_acceptance(name: str, out: Path) -> None:
    model = acceptance.fit_model(name)
    provenance = {
        "model": name,
        "model_hash": size_hash(model_size(name)),
        "date": "2026-11-29",
        "source": "paper, Tables 1 to 3; public research notes on the same models",
    }
    digest = acceptance.save_model(out / f"{name}.acceptance.json", model, provenance)
    print(f"{name} acceptance model: {digest[:12]}")
    for figure in acceptance.figures(model):
        record = figure.as_record()
        print(
            f"  {record['kind']:9} {figure.name:28} {record['ours']:>8} "
            f"published {record['published']:>8.4f} ({figure.source})"
        )
    low, high = sorted(acceptance.tau_bounds(model))
    print(f"  Table 1 bounds tau(32) by {high:.2f}; on the states that B = 32 visits by {low:.2f}")


if __name__ == "__main__":
    main()
