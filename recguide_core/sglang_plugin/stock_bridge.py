"""Builds SGLang's ForwardBatch for a padded step and runs it; the fallback layouts' way in."""

from __future__ import annotations

from typing import Any

import torch

from recguide_core.sglang_plugin import adapter as sgl


class PaddedForward(sgl.SpecInput):  # type: ignore[misc,unused-ignore]
    """A masked verify forward of one width, as SGLang's tree verification describes it.

    Attributes:
        custom_mask: bool, the requests' [W, P + W] masks one after another.
        adapter: flat indices of tokens that take the draft adapter, or None.
    """

    capture_hidden_mode = sgl.CaptureHiddenMode.NULL

    def __init__(
        self,
        width: int,
        mask: torch.Tensor,
        positions: torch.Tensor,
        adapter: torch.Tensor | None,
    ) -> None:
        super().__init__(sgl.VERIFY_KIND)
        self.draft_token_num = self.num_tokens_per_req = width
        self.num_tokens_for_logprob_per_req = width
        self.custom_mask = mask
        self.positions = positions
        self.adapter = adapter

    def generate_attn_arg_prefill(
        self,
        *,
        req_pool_indices: torch.Tensor,
        paged_kernel_lens: torch.Tensor,
        paged_kernel_lens_sum: int,
        translator: Any,
        plan: Any,
        **kind: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """KV indices, their offsets, query offsets and the mask, as FlashInfer's planner asks."""
        requests, device = len(req_pool_indices), req_pool_indices.device
        lengths = paged_kernel_lens + self.draft_token_num
        offsets = torch.zeros(requests + 1, dtype=torch.int32, device=device)
        offsets[1:] = torch.cumsum(lengths, 0)
        queries = torch.arange(requests + 1, dtype=torch.int32, device=device)
        total = paged_kernel_lens_sum + self.draft_token_num * requests
        indices = torch.empty(total, dtype=torch.int32, device=device)
        translator.pack_read_stream(
            plan,
            req_pool_indices=req_pool_indices,
            seq_lens=lengths,
            indptr=offsets,
            out=indices,
            **kind,
        )
        return indices, offsets, queries * self.draft_token_num, self.custom_mask


class StockBridge:
    """Runs padded steps and prompt batches through SGLang's target worker."""

    def __init__(self, runner: Any, worker: Any) -> None:
        self.runner = runner
        self.worker = worker
        self.batch: Any = None

    def extend(self) -> torch.Tensor:
        """Logits [n, V] of the current prompt batch's last tokens, MASK excluded."""
        out = self.worker.forward_batch_generation(self.batch)
        return out.logits_output.next_token_logits  # type: ignore[no-any-return]

    def verify(
        self,
        *,
        width: int,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        rows: torch.Tensor,
        prefix: torch.Tensor,
        adapter: torch.Tensor | None,
    ) -> torch.Tensor:
        """Logits [R * W, V] of a padded step; prefix: P of each request, on the host."""
        lengths = prefix.to(rows.device)
        at = lengths[:, None] + torch.arange(width, device=rows.device)
        slots = sgl.row_table(self.runner)[rows[:, None], at].to(torch.int64).reshape(-1)
        batch = sgl.stock_batch(
            self.runner,
            self.batch.spec_algorithm,
            batch_size=len(rows),
            input_ids=tokens,
            req_pool_indices=rows,
            seq_lens=lengths,
            seq_lens_cpu=prefix,
            seq_lens_sum=int(prefix.sum()),
            out_cache_loc=slots,
            positions=positions,
            spec_info=PaddedForward(width, mask, positions, adapter),
        )
        out = self.worker.forward_batch_generation(batch=None, forward_batch=batch, is_verify=True)
        return out.logits_output.next_token_logits  # type: ignore[no-any-return]
