"""SGLang's side of a step in twenty lines: a row table with scattered slots and a closed loop.

Lets the driver and the executors run without SGLang, over the embedded engine's transformer.
"""

import numpy as np
import torch

from recguide_core.engine.settings import EngineSettings
from recguide_core.sglang_plugin.driver import StepDriver
from recguide_core.sglang_plugin.graphs import AdapterMask
from recguide_core.sglang_plugin.row_cache import RowCache
from recguide_core.sglang_plugin.step_records import PromptPart, Turn


class Module:
    """The embedded transformer with the face of the SGLang module."""

    def __init__(self, model):
        self.transformer = model.transformer
        self.geometry = model.config
        self.adapter = model.transformer.adapter
        self.weight_device = model.transformer.device
        self.weight_dtype = model.transformer.dtype

    def forward_rows(self, batch, attention):
        if isinstance(batch.adapter, AdapterMask):
            batch.adapter = batch.adapter.tokens.nonzero().squeeze(-1)
        return self.transformer.forward(batch, attention)

    def head(self, hidden):
        return self.transformer.head(hidden)


def scattered_cache(config, rows=8, width=256, driver_slots=32, seed=0):
    """A pool whose slots are dealt to the rows at random; slot 0 is kept for padding."""
    order = np.random.default_rng(seed).permutation(rows * width) + 1
    table = torch.from_numpy(order.reshape(rows, width).astype(np.int32))
    shape = (rows * width + 1, config.kv_heads, config.head_dim)
    layers = range(config.layers)
    # What no forward has written must never be read.
    k = [torch.full(shape, torch.nan) for _ in layers]
    v = [torch.full(shape, torch.nan) for _ in layers]
    for pool in (*k, *v):
        pool[0] = 0
    return RowCache(table, k, v, np.zeros(driver_slots, np.int64))


class World:
    """Requests in a closed loop over a driver."""

    def __init__(self, model, make_executor, planners, *, chunk=0, slots=32, batching="ragged"):
        self.module = Module(model)
        self.cache = scattered_cache(model.config, driver_slots=slots)
        self.driver = StepDriver(
            make_executor(self.module, self.cache),
            planners,
            slots=slots,
            context=self.cache.table.shape[1] - 32,
            mask_id=model.config.mask_id,
            settings=EngineSettings(max_requests=slots, batching=batching),
            place=self.cache.bind,
        )
        self.chunk = chunk
        self.eos = model.eos_ids

    def run(self, prompts, budgets, planner=0, block=0):
        """Outputs of the prompts; they join one by one, so that batches differ in every step."""
        alive, out, waiting = {}, {}, list(enumerate(prompts))
        while waiting or alive:
            if waiting:
                i, prompt = waiting.pop(0)
                out[i] = [self._prefill(i, prompt, budgets[i], planner, block)]
                alive[i] = len(prompt)
            self._decode(alive, out, budgets)
        return [out[i] for i in range(len(prompts))]

    def _prefill(self, i, prompt, budget, planner, block):
        size = self.chunk or len(prompt)
        for first in range(0, len(prompt), size):
            piece = np.asarray(prompt[first : first + size], np.int64)
            last = first + size >= len(prompt)
            part = PromptPart(f"r{i}", i, first, piece, last, budget, planner=planner, block=block)
            tokens, faulty = self.driver.prefill([part])
            assert not faulty
        return int(tokens[0])

    def _decode(self, alive, out, budgets):
        for i in [i for i in alive if len(out[i]) >= budgets[i]]:
            del alive[i]
        if not alive:
            return
        turns = [Turn(f"r{i}", i, n, budgets[i] - len(out[i])) for i, n in alive.items()]
        step = self.driver.decode(turns)
        assert not step.faulty
        for turn, tokens, count in zip(turns, step.tokens, step.counts, strict=True):
            i = turn.row
            out[i] = (out[i] + tokens[:count].tolist())[: budgets[i]]
            alive[i] += int(count)
