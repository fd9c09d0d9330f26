"""One packed forward described by the host: fixed device buffers, filled by a single copy.

The path of every method that plans on the host, and of prompts. All index arrays of a step lie in
one int32 buffer, staged in (pinned) host memory, so an upload is one transfer whatever the step
holds; views of the device side have fixed addresses, as a captured graph needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from recguide_core.kernels.ops import PageTable
from recguide_core.kernels.round_state import PackedRows

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class HostRows:
    """What the host knows of a forward: T tokens of R requests, numpy.

    Attributes:
        ids, pos: [T]; vis: [T, 4]; adapter, commit: [T]; offset: first token of each request
            [R + 1]; prefix: P [R]; pages: page numbers of each request, in order.
    """

    ids: Array
    pos: Array
    vis: Array
    adapter: Array
    commit: Array
    offset: npt.NDArray[np.int64]
    prefix: Array
    pages: Sequence[Sequence[int]]


class StepBuffers:
    """Device buffers for at most `tokens` tokens, `requests` requests and `pages` pages."""

    def __init__(
        self, tokens: int, requests: int, pages: int, page: int, device: torch.device
    ) -> None:
        sizes = {
            "ids": tokens, "pos": tokens, "vis": 4 * tokens, "adapter": tokens, "commit": tokens,
            "request": tokens, "q_ptr": requests + 1, "prefix": requests,
            "page_ptr": requests + 1, "pages": max(1, pages),
        }  # fmt: skip
        # Every part starts at a multiple of 16 elements: the kernels load 16 bytes at once.
        starts, total = {}, 0
        for name, size in sizes.items():
            starts[name] = total
            total += -(-size // 16) * 16
        pinned = device.type == "cuda"
        self._stage = torch.zeros(total, dtype=torch.int32, pin_memory=pinned)
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        host = self._stage.numpy()
        self._host = {n: host[starts[n] : starts[n] + size] for n, size in sizes.items()}
        flat = {n: self._device[starts[n] : starts[n] + size] for n, size in sizes.items()}
        self.tokens, self.requests = tokens, requests
        self.rows = PackedRows(
            ids=flat["ids"],
            pos=flat["pos"],
            vis=flat["vis"].view(tokens, 4),
            adapter=flat["adapter"],
            commit=flat["commit"],
            request=flat["request"],
            q_ptr=flat["q_ptr"],
        )
        self.prefix = flat["prefix"]
        self.table = PageTable(flat["pages"], flat["page_ptr"], page)

    def fill(self, rows: HostRows) -> None:
        """Stage a forward and start its one copy; the rest of the buffers becomes padding."""
        T, R, host = len(rows.ids), len(rows.prefix), self._host
        assert self.tokens >= T and self.requests >= R
        padded = (("ids", rows.ids, 0), ("pos", rows.pos, 0), ("adapter", rows.adapter, 0),
                  ("commit", rows.commit, 0), ("prefix", rows.prefix, 0),
                  ("vis", rows.vis.reshape(-1), 0))  # fmt: skip
        for name, values, blank in padded:
            host[name][: len(values)] = values
            host[name][len(values) :] = blank
        host["request"][:T] = np.repeat(np.arange(R), np.diff(rows.offset))
        host["request"][T:] = -1
        host["q_ptr"][: R + 1] = rows.offset
        host["q_ptr"][R + 1 :] = T
        counts = [len(p) for p in rows.pages]
        ends = np.cumsum(counts)
        host["page_ptr"][0] = 0
        host["page_ptr"][1 : R + 1] = ends
        host["page_ptr"][R + 1 :] = ends[-1]
        host["pages"][: ends[-1]] = np.concatenate([np.asarray(p) for p in rows.pages])
        self._device.copy_(self._stage, non_blocking=True)
