"""Floors of forwards: what a device must move and compute at least, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from recguide_cli import console


def show_floors(
    model: str, gpu: str, shapes: Sequence[tuple[int, int, int]], branches: int
) -> dict[str, Any]:
    """Show and return the floors of (requests, tokens a request, context) forwards.

    Raises:
        UsageError: no published geometry or no known peaks of that name, or negative branches.
    """
    from recguide_core.errors import UsageError
    from recguide_core.kernels import roofline
    from recguide_core.model.registry import published_config

    if branches < 0:
        raise UsageError(f"--branches is {branches}.", "Give 0 or more branch rows.")
    config, device = published_config(model), roofline.gpu(gpu)
    record: dict[str, Any] = {
        "schema": "recguide.roofline/1",
        "model": model,
        "gpu": asdict(device),
        "ridge_tokens": roofline.ridge_tokens(config, device),
        "forwards": [],
    }
    console.note(
        f"{device.name}: {device.bandwidth / 1e12:.2f} TB/s, {device.flops / 1e12:.0f} TFLOP/s "
        f"({device.source}); compute meets bandwidth at {record['ridge_tokens']:.0f} query tokens"
    )
    for requests, tokens, context in shapes:
        shape = roofline.Shape(requests, tokens, context, branches)
        floors = roofline.forward_floor(config, shape, device)
        record["forwards"].append(
            {**asdict(shape), "parts": [{**asdict(f), "bound": f.bound} for f in floors]}
        )
        console.table(
            f"{requests} requests x {tokens} tokens, {branches} branches, context {context}",
            ("part", "GB", "GFLOP", "ms by bytes", "ms by FLOPs", "floor, ms", "bound"),
            [
                (
                    f.part,
                    f"{f.bytes / 1e9:.3f}",
                    f"{f.flops / 1e9:.1f}",
                    f"{f.bytes_ms:.4f}",
                    f"{f.flops_ms:.4f}",
                    f"{f.ms:.4f}",
                    f.bound,
                )
                for f in floors
            ],
        )
    return record
