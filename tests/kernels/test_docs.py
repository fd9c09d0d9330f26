"""docs/kernels.md shows what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from recguide_core.engine.rows import pack
from recguide_core.records import Row, Rows

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()


def test_the_picture_is_the_packed_step() -> None:
    def branch(start: int, parent_len: int) -> Row:
        return Row(0, np.zeros(4), start, 0, parent_len, bidirectional=True, adapter=True)

    P = 10
    rows = [Row(0, np.zeros(4), P, commit=True), branch(P + 2, 2), branch(P + 4, 4)]
    step = pack(Rows.of(rows), np.array([P]))
    shown = re.findall(r"^ .*pos P.*\|.*\|.*$|^ .*P\+\d.*\|.*$", PAGE, re.MULTILINE)
    assert len(shown) == 12
    for i, line in enumerate(shown):
        numbers = re.search(r"\((\d+), +(\d+), +(\d+), +(\d+)\)\s*$", line)
        assert numbers is not None, line
        a0, a1, b0, b1 = map(int, numbers.groups())
        assert (a0, a1) == tuple(step.vis[i, :2])
        # An empty parent interval may lie anywhere.
        assert (b0, b1) == tuple(step.vis[i, 2:]) or (b0 == b1 and step.vis[i, 2] == step.vis[i, 3])
        cells = line.split("|")[1:4]
        seen = [cell[j] == "#" for cell in cells for j in (1, 5, 9, 13)]
        keys = np.arange(12)
        ours = ((keys >= a0) & (keys < a1)) | ((keys >= b0) & (keys < b1))
        assert seen == ours.tolist(), line
        at = re.search(r"P(?:\+(\d+))?(?= +\|)", line)
        assert at is not None and P + int(at.group(1) or 0) == step.positions[i]


def test_every_shipped_kernel_has_a_row() -> None:
    pytest.importorskip("triton", reason="needs Triton, which is installed on Linux only")
    from recguide_core.kernels.specimens import table

    listed = set(re.findall(r"^\| (\S.*?) \| \d", PAGE, re.MULTILINE))
    assert listed == {s.name for s in table()}
