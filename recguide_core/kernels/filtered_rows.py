"""Rows of requests with top-k, top-p or min-p: read a second time in torch, inside the graph.

The filters need a sorted vocabulary, which the one-pass read-out does not make. So the tokens of
such requests are gathered into F places behind it (F is known to the host, a captured graph has a
fixed number), projected again, sorted, filtered, and written over what the kernels read. Nothing
here reads a value back to the host. Same tokens as `readout_torch.read_out` with these settings.
"""

from __future__ import annotations

from dataclasses import fields

import torch

from recguide_core.kernels.readout_torch import read_scores
from recguide_core.kernels.round_state import ReadoutBuffers
from recguide_core.kernels.sampled_rows import FilteredRows
from recguide_core.kernels.sampling_torch import FILTERED, filter_sorted, gumbel_looked_up

COPIES = 8
"""Rows of logits that reading one row may hold at once: scores, sorted scores, ids, flags."""


def part(rows: FilteredRows, lo: int, hi: int) -> FilteredRows:
    """Places lo..hi - 1."""
    return FilteredRows(*(getattr(rows, f.name)[lo:hi] for f in fields(FilteredRows)))


def reread(
    logits: torch.Tensor,
    rows: FilteredRows,
    table: torch.Tensor,
    into: ReadoutBuffers,
    mask_id: int,
    eos_ids: tuple[int, ...],
) -> None:
    """Overwrite the read-out of `rows` that filter; places beyond them keep theirs.

    Args:
        logits: of `rows.index`, fp32 [F, V], overwritten; table: `sampling_torch.noise_table`;
            into: of all packed tokens.
    """
    logits[:, mask_id] = FILTERED
    heat = torch.where(rows.use, rows.heat, 1.0).unsqueeze(1)
    scores = filter_sorted(logits / heat, rows.top_k, rows.top_p, rows.min_p)
    scores = scores + gumbel_looked_up(rows.key, table, logits.shape[1])
    found = read_scores(logits, scores, eos_ids)
    ids = torch.stack((found.token, found.alt), 1).int()
    second = found.confidence - found.margin
    stats = torch.stack((found.confidence, second, found.margin, found.entropy), 1)
    use = rows.use.unsqueeze(1)
    into.ids[rows.index] = torch.where(use, ids, into.ids[rows.index])
    old = into.stats[rows.index]
    into.stats[rows.index] = torch.where(use, torch.cat((stats, old[:, 4:]), 1), old)
