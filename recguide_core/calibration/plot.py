"""V_B(s, z) as a picture; needs matplotlib (the extra `plots`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from recguide_core.policy.value import ValueTable


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save_value_plot(table: ValueTable, path: Path, title: str) -> None:
    """One panel per history, one curve per block: V over certainty s in nats."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    strata = [s for s in table.strata if not s.lagged and len(s.edges)]
    if not strata:
        strata = [s for s in table.strata if not s.lagged]
    columns = min(3, len(strata))
    rows = -(-len(strata) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3 * rows), sharey=True, squeeze=False
    )
    colors = pyplot.get_cmap("viridis")(np.linspace(0.1, 0.9, len(table.menu)))
    for axis, stratum in zip(axes.flat, strata, strict=False):
        value = stratum.survival.sum(axis=2)
        edges = stratum.edges
        for j, block in enumerate(table.menu.tolist()):
            if len(edges):
                inner = value[:-1, j]
                axis.step(edges, inner[:-1], where="pre", color=colors[j], label=f"B = {block}")
                axis.hlines(inner[-1], edges[-1], max(0.0, edges[-1]), color=colors[j])
            else:
                axis.axhline(value[-1, j], color=colors[j], label=f"B = {block}")
        axis.set_title(_name(stratum), fontsize=9)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(strata) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=7)
    figure.supxlabel("certainty s (nats)")
    figure.supylabel("expected accepted length V")
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=110, format=path.suffix[1:])
    temporary.replace(path)
    pyplot.close(figure)


def _name(stratum: Any) -> str:
    if stratum.prev_block < 0:
        return "any history"
    if stratum.prev_block == 0:
        return "no history"
    return f"previous block {stratum.prev_block}, {'full' if stratum.prev_full else 'partial'}"
