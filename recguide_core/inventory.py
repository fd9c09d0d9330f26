"""What this machine has: versions, devices, back ends, and why one cannot be used.

Looks things up when asked; importing it loads nothing heavy. Nothing here changes a setting.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from recguide_core.policy.devices import GPUS

PACKAGES = (
    "recguide",
    "torch",
    "triton",
    "numpy",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "transformers",
    "sglang",
    "flashinfer-python",
    "fastapi",
    "datasets",
    "matplotlib",
)


@dataclass(frozen=True, slots=True)
class Device:
    """Something that can run a model."""

    name: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class BackEnd:
    """A way to run the engine, and the reason if it cannot be used here."""

    name: str
    usable: bool
    reason: str


def versions() -> dict[str, str | None]:
    """Versions of what can matter to a result; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if found["recguide"] is None:
        from recguide_core import __version__

        found["recguide"] = __version__
    return found


def cpu_name() -> str:
    """Model name of the processor, or the machine's architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def place_of(device: str) -> str:
    """How tables name a torch device: `cpu`, or the GPU's short name (`h200`)."""
    if not device.startswith("cuda"):
        return device.split(":")[0]
    import torch

    if not torch.cuda.is_available():
        return "cuda"
    return short_gpu_name(torch.cuda.get_device_name(device))


def short_gpu_name(full: str) -> str:
    """How tables name a GPU: `NVIDIA H100 80GB HBM3` is `h100`, an unknown one is its own name."""
    slug = "-".join(full.lower().replace("nvidia", " ").split())
    known = [name for name in GPUS if name in slug]
    return max(known, key=len) if known else slug


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def devices() -> list[Device]:
    """The CPU and every CUDA device that torch sees."""
    found = [Device("cpu", "cpu", f"{cpu_name()}, {usable_cores()} cores")]
    if importlib.util.find_spec("torch") is None:
        return found
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            gib = about.total_memory / 2**30
            detail = f"{about.name}, {gib:.0f} GiB, {about.multi_processor_count} SMs"
            found.append(Device(f"cuda:{index}", "cuda", detail))
    return found


def back_ends() -> list[BackEnd]:
    """Every back end with its reason."""
    cuda = _why_no_cuda()
    found = [BackEnd("torch-cpu", *_torch())]
    found.append(BackEnd("torch-cuda", cuda is None, cuda or "ready"))
    found.append(BackEnd("triton", *_needs("triton", cuda, "compiles only (no CUDA device)")))
    found.append(BackEnd("flashinfer", *_needs("flashinfer", cuda, "")))
    found.append(BackEnd("sglang", *_sglang(cuda)))
    return found


def _sglang(cuda: str | None) -> tuple[bool, str]:
    """SGLang counts only in a release that the plugin is known to work with."""
    from recguide_core.errors import MismatchError
    from recguide_core.sglang_plugin.versions import KNOWN_GOOD, check_version, installed_version

    found = installed_version()
    if found is None:
        return _needs("sglang", cuda, "")
    try:
        check_version(found)
    except MismatchError as error:
        return False, f"{error.cause} {error.remedy}"
    good = f"{found} is one of the known good ({', '.join(KNOWN_GOOD)})"
    return (True, good) if cuda is None else (False, f"{cuda}; {good}")


def _torch() -> tuple[bool, str]:
    if importlib.util.find_spec("torch") is None:
        return False, "torch is not installed; pip install recguide brings it"
    return True, "ready"


def _why_no_cuda() -> str | None:
    """Why torch cannot use a CUDA device, or None when it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a CPU build"
    if not torch.cuda.is_available():
        return "torch has CUDA, but no device or driver answers"
    return None


def _needs(package: str, cuda: str | None, without_cuda: str) -> tuple[bool, str]:
    if importlib.util.find_spec(package) is None:
        extra = "" if package == "triton" else "; pip install 'recguide[sglang]'"
        return False, f"{package} is not installed{extra}"
    if cuda is not None:
        return False, without_cuda or cuda
    return True, "ready"


def provenance() -> dict[str, str | int | None]:
    """Versions and machine in one flat record, as artefacts carry them."""
    return {
        **versions(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
    }
