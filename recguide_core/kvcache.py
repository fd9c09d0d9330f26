"""The paged KV pool: the tensors behind a `PageTable`."""

from __future__ import annotations

import numpy as np
import torch

from recguide_core.errors import UsageError
from recguide_core.pages import PageTable


class KVPool(PageTable):
    """The pages with their tensors.

    Attributes:
        k, v: one tensor a layer, [slots, Hkv, D], slots = pages * page_size.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        tokens: int,
        page_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        if tokens < page_size:
            raise UsageError(
                f"A KV pool of {tokens} tokens is smaller than one page of {page_size}.",
                "Give --kv-tokens at least the length of one request.",
            )
        super().__init__(tokens // page_size, page_size)
        shape = (self.pages * page_size, kv_heads, head_dim)

        def blank() -> list[torch.Tensor]:
            # Zeroed: a padded batch may read (and mask out) slots that were never written, and
            # 0 x NaN would poison it. On CPU the pages are mapped only when first touched.
            if device.type == "cpu" and dtype == torch.float32:
                return [torch.from_numpy(np.zeros(shape, np.float32)) for _ in range(layers)]
            return [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]

        self.k, self.v = blank(), blank()

    def release(self, request: int) -> None:
        """Give all pages of a request back, wiped: free pages hold finite values."""
        held = self._held.get(request)
        if held is not None and held.touched:
            start = self.run_start(request)
            used: slice | torch.Tensor
            if start >= 0:
                used = slice(start, start + held.touched)
            else:
                used = torch.from_numpy(self.slots(request, 0, held.touched)).to(self.k[0].device)
            for tensor in (*self.k, *self.v):
                tensor[used] = 0.0
        super().release(request)
