"""Ahead-of-time compilation of every shipped kernel configuration, without a GPU.

`build` compiles one of `specimens` for a compute capability with the Triton that is installed, and
reads registers, stack, shared memory and the instructions of the real cubin with the tools inside
Triton's wheel. `faults` says what is wrong with it. Needs a process where TRITON_INTERPRET is not
set: an interpreted function has no syntax tree to compile.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recguide_core.kernels.specimen import Specimen
from recguide_core.kernels.specimens import specimens

CAPABILITIES = (90, 100)
SHARED_LIMIT = 227 * 1024

_TENSOR_CORE = ("HGMMA", "HMMA", "UTCHMMA", "UTCQMMA")


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas made of a specimen."""

    name: str
    capability: int
    registers: int
    stack: int
    shared: int
    local_accesses: int
    tensor_core: dict[str, int] = field(default_factory=dict)
    wide_loads: int = 0


def build(specimen: Specimen, capability: int) -> Resources:
    """Compile one specimen and read its cubin."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = importlib.import_module(f"recguide_core.kernels.{specimen.module}")
    function = getattr(module, specimen.function)
    names = function.arg_names
    constants, signature = specimen.constants, specimen.signature
    source = ASTSource(
        function,
        {n: "constexpr" if n in constants else signature[n] for n in names},
        {(names.index(n),): value for n, value in constants.items()},
        {(names.index(n),): [["tt.divisibility", 16]] for n in specimen.aligned},
    )
    options = {"num_warps": specimen.warps, "num_stages": specimen.stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage = _run(tool, "--dump-resource-usage", cubin)
        sass = _run(tool, "--dump-sass", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    counts = {name: len(re.findall(rf"\b{name}\b", sass)) for name in _TENSOR_CORE}
    return Resources(
        name=specimen.name,
        capability=capability,
        registers=int(found.group(1)),
        stack=int(found.group(2)),
        shared=int(kernel.metadata.shared),
        local_accesses=len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        tensor_core={name: n for name, n in counts.items() if n},
        wide_loads=len(re.findall(specimen.wide_loads or "$^", kernel.asm["ptx"])),
    )


def _run(tool: Path, *args: object) -> str:
    command = [str(tool), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def faults(specimen: Specimen, made: Resources) -> list[str]:
    """Why this build must not ship; empty when it may."""
    wrong = []
    if made.stack or made.local_accesses:
        wrong.append(f"spills: stack {made.stack} bytes, {made.local_accesses} local accesses")
    if made.shared > SHARED_LIMIT:
        wrong.append(f"shared memory {made.shared} bytes")
    if specimen.tensor_core and not made.tensor_core:
        wrong.append("no tensor-core instruction")
    if specimen.wide_loads and not made.wide_loads:
        wrong.append("no 16-byte load of the bulk data")
    return wrong


def main(share: int, of: int, write: Callable[[str], object]) -> None:
    """Build every `of`-th specimen from `share` on; one JSON line each."""
    for index, specimen in enumerate(specimens()):
        if index % of == share:
            for capability in CAPABILITIES:
                write(json.dumps(asdict(build(specimen, capability))) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.stdout.write)
