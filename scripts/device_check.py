"""Check and time the kernels on a machine with one GPU; needs numpy, torch and triton only.

    python scripts/device_check.py --budget 420 --out device_check.json    # on the GPU
    python scripts/device_check.py --tiny --out build/device_check.json    # dry run on CPU

Parts run in order, most important first: correctness of each kernel ("attention", "readout",
"fused"), captured rounds on changing contents ("rounds"), the engine's own loop over them
("engine"), the cost table of NLD-8B geometry
("cost"), kernels against floors ("speed"), eager against replay ("graphs"), replayed methods
("replay"), and FlashInfer beside ours where it is installed ("flashinfer"). The JSON goes to
`recguide profile --import FILE`. The last line of stdout is a summary; exit status 1 on a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--budget", type=float, default=420.0, help="seconds for all parts")
    parser.add_argument("--only", help="run one part")
    parser.add_argument("--tiny", action="store_true", help="dry run on CPU, in the interpreter")
    parser.add_argument("--out", type=Path, default=Path("device_check.json"))
    options = parser.parse_args()
    if options.tiny:
        # Triton decides when a kernel module is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(ROOT))
    from recguide_core.engine.checked import engine_rounds
    from recguide_core.engine.replayed import replayed_policy
    from recguide_core.errors import RecGuideError
    from recguide_core.kernels.check.parts import run

    def log(record: dict[str, object]) -> None:
        print(json.dumps(record), flush=True)

    try:
        report = run(
            options.only, options.budget, options.tiny, log, replayed_policy, engine_rounds
        )
    except RecGuideError as error:
        print(f"{error.cause} {error.remedy}", file=sys.stderr)
        return error.exit_code
    options.out.parent.mkdir(parents=True, exist_ok=True)
    partial = options.out.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(options.out)
    summary = {k: report[k] for k in ("dry_run", "seconds", "failures")}
    print(json.dumps({**summary, "records": len(report["records"]), "out": str(options.out)}))
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
