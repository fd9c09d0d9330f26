"""profile, calibrate and tune over SGLang: the job goes to a server, its result comes back.

Nothing here imports SGLang. A server is started for one probe (see `probe`), sized for it, and
ended when the result lies there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recguide_core import inventory
from recguide_core.calibration.run import close_log, encode, open_log
from recguide_core.calibration.settings import SGLANG, ShadowSettings
from recguide_core.calibration.shadow import LONGEST, ShadowPrompt
from recguide_core.datasets import Prompt
from recguide_core.errors import DataError
from recguide_core.model.checkpoint import Checkpoint, read_checkpoint
from recguide_core.profiling.measure import room_for
from recguide_core.profiling.run import ProfileSettings, cost_table, device_label, grid_for
from recguide_core.sglang_plugin.launch import ServerConfig
from recguide_core.sglang_plugin.machine import tokens_of_line
from recguide_core.sglang_plugin.server import free_port, wait_for_file
from recguide_core.sglang_plugin.settings import PluginSettings
from recguide_core.sglang_plugin.versions import check_version, installed_version
from recguide_core.tables import Table, provenance, read_json, write_json

if TYPE_CHECKING:
    from recguide_core.calibration.recording import Recorded

PAGE = 64
"""Slots beyond those asked for: SGLang rounds pools to whole pages."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Device:
    """Where the probed server runs.

    Attributes:
        name: cpu, cuda or cuda:n; dtype: "auto" is float32 on a CPU, else the checkpoint's.
        tp: tensor-parallel ranks; threads: CPU threads of torch, 0 for one.
    """

    name: str = "cpu"
    dtype: str = "auto"
    tp: int = 1
    threads: int = 0

    @property
    def env(self) -> dict[str, str]:
        """Variables beside those of `launch.server_command`."""
        found = {}
        if self.threads:
            found["OMP_NUM_THREADS"] = str(self.threads)
        if self.name.startswith("cuda:"):
            found["CUDA_VISIBLE_DEVICES"] = self.name.removeprefix("cuda:")
        return found


def run_job(
    model: str,
    device: Device,
    job: Mapping[str, Any],
    *,
    requests: int,
    tokens: int,
    progress: Progress = lambda done, total, text: None,
) -> dict[str, Any]:
    """Start a server for a job, follow it, and return its result.

    Args:
        job: as `probe` takes it, without the files that it writes to.
        requests, tokens: lines of the job, and slots of each.

    Raises:
        RecGuideError: no SGLang, or the server ended; its log says why.
    """
    check_version(installed_version())
    with tempfile.TemporaryDirectory(prefix="recguide-probe-") as name:
        home = Path(name)
        files = {"result": home / "result.json", "progress": home / "progress.json"}
        body = {**job, **{key: str(path) for key, path in files.items()}}
        path = home / "job.json"
        write_json(path, body)
        config = ServerConfig(
            model=model,
            plugin=PluginSettings(method="ar", probe=str(path)),
            port=free_port(),
            device=device.name.split(":")[0],
            dtype=device.dtype,
            kv_tokens=requests * tokens + PAGE,
            max_requests=requests,
            tp=device.tp,
            extra=("--log-level", "warning", "--skip-server-warmup"),
        )

        def tick() -> None:
            if files["progress"].is_file():
                seen = read_json(files["progress"])
                progress(seen["done"], seen["total"], seen["text"])

        wait_for_file(config, files["result"], env=device.env, tick=tick)
        tick()
        found: dict[str, Any] = read_json(files["result"])
        return found


def profile(
    settings: ProfileSettings,
    tp: int = 1,
    on_point: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> Table:
    """The cost table of a model's forwards inside SGLang.

    Raises:
        MismatchError: another GPU than the one named is in this machine.
        RecGuideError: no SGLang, no such model, or the server ended.
    """
    check_version(installed_version())
    label = device_label(settings)
    checkpoint = read_checkpoint(settings.model)
    context = checkpoint.config.max_positions
    points = grid_for(settings, context)
    requests, tokens, in_flight = room_for(points)
    device = Device(
        "cpu" if settings.on_cpu else "cuda", settings.dtype or "auto", tp, settings.threads
    )
    found = run_job(
        settings.model,
        device,
        {
            "kind": "profile",
            "points": [asdict(point) for point in points],
            "budget_s": settings.budget_s,
            "cpu_time": settings.cpu_time,
        },
        requests=requests,
        tokens=tokens_of_line(tokens, in_flight, context),
        progress=on_point,
    )
    about = provenance(
        settings.model,
        checkpoint.hash,
        label,
        "recguide profile --engine sglang",
        **found["about"],
        seed=str(settings.seed),
        weights="checkpoint",
        timer="processor" if settings.cpu_time else "wall",
        cpu=inventory.cpu_name(),
    )
    return cost_table(points, found["timings"], about)


def collect(
    prompts: Sequence[Prompt],
    settings: ShadowSettings,
    folder: Path,
    *,
    tp: int = 1,
    overwrite: bool = False,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """`calibration.run.collect` with the rounds of the served model: same log, same table.

    Raises:
        MismatchError: the log in `folder` was made with another model or other settings.
        DataError: no prompt fits the model. RecGuideError: no SGLang, or the server ended.
    """
    check_version(installed_version())
    checkpoint = read_checkpoint(settings.model)
    log = open_log(settings, checkpoint.hash, folder, overwrite=overwrite)
    encoded = {p.name: p for p in encode(checkpoint, prompts, settings.template)}
    waiting = [p for p in encoded.values() if p.name not in log.done]
    done, version = len(encoded) - len(waiting), str(installed_version())
    if waiting:
        run_job(
            settings.model,
            Device(settings.device, settings.dtype, tp, settings.threads),
            {
                "kind": "shadow",
                "prompts": _plain(waiting),
                "menu": list(settings.menu),
                "seed": settings.seed,
                "max_tokens": settings.max_tokens,
                "batch": settings.batch,
                "log": str(log.path.resolve()),
            },
            requests=settings.batch,
            tokens=_line(checkpoint),
            progress=lambda now, total, _: on_request(done + now, done + total),
        )
    return close_log(log, settings, checkpoint.hash, sglang=version, tp=str(tp))


def record(
    checkpoint: Checkpoint,
    prompts: Sequence[ShadowPrompt],
    blocks: Sequence[int],
    *,
    max_tokens: int,
    path: Path,
    device: Device,
    batch: int = 16,
    on_request: Callable[[int, int], None] = lambda done, total: None,
) -> Recorded:
    """`calibration.record.record_prompts` with the served model: same file, same recordings.

    Raises:
        DataError: the file is no recording. RecGuideError: no SGLang, or the server ended.
    """
    from recguide_core.calibration.recording import (
        Recorded,
        load_recordings,
        save_recordings,
    )

    about = {
        "model_hash": checkpoint.hash,
        "blocks": list(blocks),
        "max_tokens": max_tokens,
        "engine": SGLANG,
    }
    known = {one.name: one for one in load_recordings(path, about)}
    missing = [p for p in prompts if p.name not in known]
    if missing:
        with tempfile.TemporaryDirectory(prefix="recguide-record-") as name:
            fresh = Path(name) / "fresh.npz"
            run_job(
                checkpoint.name,
                device,
                {
                    "kind": "record",
                    "prompts": _plain(missing),
                    "blocks": list(blocks),
                    "max_tokens": max_tokens,
                    "batch": batch,
                    "recordings": str(fresh),
                    "about": about,
                },
                requests=batch,
                tokens=_line(checkpoint),
                progress=lambda done, total, _: on_request(done, total),
            )
            known.update((one.name, one) for one in load_recordings(fresh, about))
        save_recordings(path, about, list(known.values()))
    texts = Recorded(list(known.values()), max_tokens, checkpoint.eos_ids)
    found = texts.take(p.name for p in prompts)
    if not found.texts:
        raise DataError("No prompt fits the model's context.", "Use shorter prompts.")
    return found


def _plain(prompts: Sequence[ShadowPrompt]) -> list[dict[str, Any]]:
    return [{"data": p.data, "name": p.name, "tokens": p.tokens.tolist()} for p in prompts]


def _line(checkpoint: Checkpoint) -> int:
    """Slots of one request of a decoding probe."""
    context = checkpoint.config.max_positions
    return tokens_of_line(min(context, LONGEST), 0, context)
