"""Three layouts of a weight matrix in a forward of few tokens on a CPU: rows, columns, blocks.

    python benchmarks/weight_layout.py --model nld-tiny --tokens 1,4,16

Each matrix shape of the model is multiplied with more copies than the caches hold, as in a real
forward, where the other layers come between two uses. The layouts (as it is on disk, column by
column, oneDNN's blocks) alternate in one run; beside them stands the rate at which the fastest read
its weights.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from recguide_core.model.products import Product
from recguide_core.model.registry import load_model

CACHE_BYTES = 48 << 20
"""All copies of a matrix together, more than the cache of a core's share."""


def copies(shape: tuple[int, int]) -> list[list[Product]]:
    """The same count of matrices in each layout."""
    count = max(6, CACHE_BYTES // (4 * shape[0] * shape[1]))
    rows = [torch.randn(shape) for _ in range(count)]
    columns = [w.t().contiguous().t() for w in rows]
    return [
        [Product(w, pack=False) for w in rows],
        [Product(w, pack=False) for w in columns],
        [Product(w, pack=True) for w in rows],
    ]


def pass_over(products: list[Product], x: torch.Tensor) -> float:
    """Microseconds per product."""
    began = time.perf_counter()
    for product in products:
        product(x)
    return (time.perf_counter() - began) / len(products) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nld-tiny")
    parser.add_argument("--tokens", default="1,2,4,16,32")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    weights = load_model(options.model).transformer.weights
    layer = weights.layers[0]
    named = {n: getattr(layer, n) for n in ("qkv", "o", "gate_up", "down")} | {"head": weights.head}
    head = f"{'rows us':>9} {'columns us':>10} {'blocks us':>9}"
    print(f"{'matrix':8} {'shape':>12} {'tokens':>6} {head} {'GB/s':>6}")
    with torch.inference_mode():
        for name, matrix in named.items():
            shape = (int(matrix.shape[0]), int(matrix.shape[1]))
            sets = copies(shape)
            for n in map(int, options.tokens.split(",")):
                x = torch.randn(n, shape[1])
                runs = [[pass_over(s, x) for s in sets] for _ in range(options.repeats)]
                rows, columns, blocks = (
                    statistics.median(side) for side in zip(*runs, strict=True)
                )
                rate = 4e-3 * shape[0] * shape[1] / min(rows, columns, blocks)
                size = f"{shape[0]}x{shape[1]}"
                times = f"{rows:9.1f} {columns:10.1f} {blocks:9.1f}"
                print(f"{name:8} {size:>12} {n:6} {times} {rate:6.1f}")


if __name__ == "__main__":
    main()
