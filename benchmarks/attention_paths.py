"""Two ways to attend several requests on a CPU: one padded call, or a call per request.

    python benchmarks/attention_paths.py --requests 2,8,32 --tokens 1,4,8,16,32

Each request brings the same number of causal tokens behind a prefix of its own length, as verify
rows do, and both ways (planning of the step included) alternate in one run. `padded` shows how much
longer than its own keys a request's part of the padded call is; a ratio above 1 says that the
padded call is the faster one.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from recguide_core.kernels import attention_torch
from recguide_core.kernels.attention_torch import PackedLayout, TorchAttention
from recguide_core.kvcache import KVPool
from recguide_core.model.config import ModelConfig
from recguide_core.model.registry import load_model

PAGE = 16


class Step:
    """A forward's attention at every layer, over a pool of its own.

    Args:
        prefixes: committed tokens of each request; n: tokens that each brings.
    """

    def __init__(self, config: ModelConfig, prefixes: list[int], n: int) -> None:
        self.config = config
        room = -(-(max(prefixes) + n) // PAGE) * PAGE
        self.pool = KVPool(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            tokens=len(prefixes) * room,
            page_size=PAGE,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        for request in range(len(prefixes)):
            self.pool.reserve(request, room)
        for tensor in (*self.pool.k, *self.pool.v):
            tensor.normal_()
        index = np.arange(len(prefixes) * n)
        vis = np.stack([index - index % n, index + 1, index * 0, index * 0], axis=1)
        offset = np.arange(len(prefixes) + 1) * n
        self.layout = PackedLayout(np.arange(len(prefixes)), offset, np.array(prefixes), vis)
        self.q = torch.randn(len(index), config.heads, config.head_dim)
        self.kv = torch.randn(2, len(index), config.kv_heads, config.head_dim)

    def run(self) -> torch.Tensor:
        """The last layer's result."""
        attention = TorchAttention(self.pool, self.layout, self.config.group)
        for layer in range(self.config.layers):
            out = attention.attend(layer, self.q, self.kv[0], self.kv[1])
        return out


def microseconds(step: Step, uniform_up_to: int) -> float:
    """One forward's attention with padded calls up to so many tokens a request."""
    attention_torch.UNIFORM_MAX_TOKENS = uniform_up_to
    attention_torch.UNIFORM_MAX_PADDING = float("inf")
    began = time.perf_counter()
    step.run()
    return (time.perf_counter() - began) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nld-tiny")
    parser.add_argument("--requests", default="2,8,32")
    parser.add_argument("--tokens", default="1,4,8,16,32")
    parser.add_argument("--prefixes", default="64:256", help="shortest and longest prefix")
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = load_model(options.model).config
    shortest, longest = map(int, options.prefixes.split(":"))
    random = np.random.default_rng(0)
    print(f"{'requests':>8} {'tokens':>6} {'padded':>6} {'one us':>9} {'each us':>9} {'ratio':>6}")
    with torch.inference_mode():
        for count in map(int, options.requests.split(",")):
            prefixes = random.integers(shortest, longest + 1, count).tolist()
            for n in map(int, options.tokens.split(",")):
                step = Step(config, prefixes, n)
                runs = [
                    (microseconds(step, n), microseconds(step, 0)) for _ in range(options.repeats)
                ]
                one, each = (statistics.median(side) for side in zip(*runs, strict=True))
                padded = (max(prefixes) + n) / (sum(prefixes) / count + n)
                times = f"{padded:6.2f} {one:9.1f} {each:9.1f} {each / one:6.2f}"
                print(f"{count:8} {n:6} {times}", flush=True)


if __name__ == "__main__":
    main()
