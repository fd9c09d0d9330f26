"""Prompts into the pool by one packed forward, for rounds that then run on the device alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from recguide_core.kernels.device_forward import DeviceForward, Pools
from recguide_core.kernels.head import OutputHead
from recguide_core.kernels.round_state import ReadoutBuffers, RoundState
from recguide_core.kernels.row_noise import NoiseSource, filters, set_sampling
from recguide_core.kernels.step_buffers import HostRows, StepBuffers
from recguide_core.records import Sampling


def prompt_rows(prompts: Sequence[Sequence[int]], pages: Sequence[Sequence[int]]) -> HostRows:
    """One causal commit row a request, from position 0."""
    lengths = np.array([len(p) for p in prompts], dtype=np.int64)
    offset = np.concatenate(([0], np.cumsum(lengths)))
    index = np.arange(offset[-1])
    begin = np.repeat(offset[:-1], lengths)
    zeros = np.zeros_like(index)
    return HostRows(
        ids=np.concatenate([np.asarray(p) for p in prompts]),
        pos=index - begin,
        vis=np.stack([begin, index + 1, zeros, zeros], 1),
        adapter=zeros,
        commit=np.ones_like(index),
        offset=offset,
        prefix=np.zeros(len(prompts), np.int64),
        pages=pages,
    )


def prefill(
    forward: DeviceForward,
    head: OutputHead,
    buffers: StepBuffers,
    pools: Pools,
    prompts: Sequence[Sequence[int]],
    pages: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    context: int,
    sampling: Sequence[Sampling] = (),
) -> RoundState:
    """Commit the prompts and return the state behind them; the seed counts as emitted.

    Args:
        buffers: room for all prompt tokens; pages: of each request, for its whole context.
        max_tokens: budget of each request, its first token included.
        sampling: of each request; none of them samples when it is empty.

    Raises:
        UsageError: a request samples in a way that the device does not.
    """
    host = prompt_rows(prompts, pages)
    buffers.fill(host)
    hidden = forward.hidden(buffers.rows, buffers.table, buffers.prefix, pools)
    lasts = torch.from_numpy(host.offset[1:] - 1).to(hidden.device)
    read = ReadoutBuffers.sized(len(prompts), hidden.device)
    state = RoundState.sized(len(prompts), hidden.device)
    lengths = torch.tensor([len(p) for p in prompts], dtype=torch.int32, device=hidden.device)
    noise = None
    if sampling:
        set_sampling(state, sampling)
        filtered = len(prompts) if any(filters(one) for one in sampling) else 0
        noise = NoiseSource(hidden.device).at(state, lengths, filtered)
    head.run(forward.ops, hidden[lasts], read, noise)
    state.live.fill_(1)
    state.committed.copy_(lengths)
    state.seed.copy_(read.token)
    state.remaining.fill_(max_tokens - 1)
    state.room.copy_(context - lengths)
    ended = torch.isin(read.token, read.token.new_tensor(forward.ops.geometry.eos_ids))
    state.live[ended | (state.remaining < 1)] = 0
    return state
