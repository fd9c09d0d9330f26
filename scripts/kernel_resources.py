"""Compile every shipped kernel and rewrite the resource tables of docs/kernels.md.

python scripts/kernel_resources.py          # needs Triton and no GPU; about two minutes
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- resources: begin -->", "<!-- resources: end -->"


def table() -> str:
    """Markdown of registers, stack, shared memory and instructions by kernel and architecture."""
    import triton

    from recguide_core.kernels.aot import CAPABILITIES, build, faults
    from recguide_core.kernels.specimens import table as shipped

    lines = [
        f"Triton {triton.__version__}; registers / stack bytes / shared KiB / tensor-core "
        "instructions / 16-byte loads.",
        "",
        "| kernel | " + " | ".join(f"sm_{c}" for c in CAPABILITIES) + " |",
        "|---|" + "---|" * len(CAPABILITIES),
    ]
    for specimen in shipped():
        cells = []
        for capability in CAPABILITIES:
            made = build(specimen, capability)
            wrong = faults(specimen, made)
            if wrong:
                raise SystemExit(f"{specimen.name} on sm_{capability}: {'; '.join(wrong)}")
            cores = ", ".join(f"{n} {k}" for k, n in made.tensor_core.items()) or "-"
            wide = made.wide_loads if specimen.wide_loads else "-"
            cells.append(
                f"{made.registers} / {made.stack} / {made.shared / 1024:.0f} / {cores} / {wide}"
            )
        lines.append(f"| {specimen.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    sys.path.insert(0, str(ROOT))
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")
    print(f"Wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
