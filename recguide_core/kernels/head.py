"""Output head and read-out in chunks of rows, so that the logits of a large batch never exist.

At C = 128 and B = 32 the logits of one forward would be 2 GiB in fp32; here at most
`launch.HEAD_EXTRA_BYTES` are alive, in one buffer that every chunk and every graph shares.
"""

from __future__ import annotations

import torch

from recguide_core.kernels import filtered_rows, launch
from recguide_core.kernels.ops import RoundOps
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.sampled_rows import RowNoise


class OutputHead:
    """hidden [n, hidden] (normed) -> read-out of n rows.

    The logits are kept in fp32 straight from the product where the device can do that: bf16
    logits of 16..32 lie 0.125 apart, and exact ties would be common.

    Args:
        weight: [V, hidden]; rows: most rows of a call; budget: bytes for the logits of a chunk.
    """

    def __init__(
        self, weight: torch.Tensor, rows: int, budget: int = launch.HEAD_EXTRA_BYTES
    ) -> None:
        self.weight = weight
        vocab = len(weight)
        self.rows = min(rows, launch.head_chunk_rows(vocab, 4, budget))
        self.logits = torch.zeros((self.rows, vocab), dtype=torch.float32, device=weight.device)

    @property
    def extra_bytes(self) -> int:
        """Memory beside the weights, partial results of the vocabulary pass included."""
        return self.logits.numel() * 4 + self.rows * launch.READOUT_PARTIAL_BYTES

    def run(
        self,
        ops: RoundOps,
        hidden: torch.Tensor,
        into: ReadoutBuffers,
        noise: RowNoise | None = None,
    ) -> None:
        """Fill `into` for every row of `hidden`; `noise`: of rows that may sample.

        Rows of requests that filter are read a second time (`filtered_rows`).
        """
        for lo in range(0, len(hidden), self.rows):
            hi = min(lo + self.rows, len(hidden))
            logits = self.logits[: hi - lo]
            self._project(hidden[lo:hi], logits)
            ops.readout(logits, into.rows(lo, hi), None if noise is None else noise.rows(lo, hi))
        if noise is None or noise.filtered is None:
            return
        g, most = ops.geometry, max(1, self.rows // filtered_rows.COPIES)
        for lo in range(0, len(noise.filtered.index), most):
            part = filtered_rows.part(noise.filtered, lo, lo + most)
            # Captured graphs keep no list of rows: every place is read, the used ones are kept.
            logits = self.logits[: len(part.index)]
            self._project(hidden[part.index], logits)
            filtered_rows.reread(logits, part, noise.table, into, g.mask_id, g.eos_ids)

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits fp32 [n, V]; up to `rows` rows lie in the shared buffer, until the next call."""
        logits = self.logits[: len(hidden)]
        if len(hidden) > self.rows:
            logits = logits.new_empty((len(hidden), logits.shape[1]))
        self._project(hidden, logits)
        return logits

    def _project(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        if hidden.dtype == torch.float32:
            torch.mm(hidden, self.weight.T, out=logits)
        elif hidden.is_cuda:
            torch.mm(hidden, self.weight.T, out_dtype=torch.float32, out=logits)
        else:
            logits.copy_(torch.mm(hidden, self.weight.T))
