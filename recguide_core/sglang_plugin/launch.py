"""`recguide serve --engine sglang`: which engine, and the command that starts SGLang.

`choose_engine` and `missing_parts` look at the machine; `server_command` turns a checked
configuration into arguments and environment. Nothing here starts a process or imports SGLang.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recguide_core.errors import DataError, RecGuideError, UsageError, nearest
from recguide_core.inventory import short_gpu_name
from recguide_core.model import registry
from recguide_core.model.weights import content_hash
from recguide_core.sglang_plugin.settings import VARIABLE, PluginSettings, write_settings
from recguide_core.sglang_plugin.versions import check_version, installed_version
from recguide_core.tuning.guidance import load_tuned

ENGINES = ("auto", "embedded", "sglang")
MODELS_PACKAGE = "recguide_core.sglang_plugin.models"
OURS = {
    "--model-path": "--model",
    "--model": "--model",
    "--speculative-algorithm": "--method",
    "--speculative-num-draft-tokens": "--block-size",
    "--speculative-num-steps": "--method",
    "--speculative-eagle-topk": "--method",
    "--host": "--host",
    "--port": "--port",
}
"""SGLang's flags that RecGuide sets itself, and the option to use instead."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server to start.

    Attributes:
        plugin: method, layout, policy; drafter: DFlash checkpoint for method `dflash`.
        device: auto, cuda or cpu; dtype: "auto" takes the checkpoint's.
        context, kv_tokens, max_requests: 0 leaves SGLang's choice.
        tp, dp: tensor- and data-parallel ranks.
        extra: flags for SGLang, as they come after `--`.
    """

    model: str
    plugin: PluginSettings = field(default_factory=PluginSettings)
    drafter: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    served_name: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    context: int = 0
    kv_tokens: int = 0
    max_requests: int = 0
    tp: int = 1
    dp: int = 1
    api_key: str | None = None
    extra: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute.

    Attributes:
        argv: program and arguments; env: variables to set on top of the caller's.
        notes: what was resolved and from where, one line each, and what to run when a table is
            missing.
    """

    argv: list[str]
    env: dict[str, str]
    notes: list[str]


def has_cuda() -> bool:
    """Torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def choose_engine(
    asked: str, model: str, *, cuda: bool | None = None, sglang: str | None = None
) -> tuple[str, str]:
    """The engine to serve with, and why.

    Args:
        asked: auto, embedded or sglang; cuda, sglang: what the machine has, looked up when None.

    Raises:
        UsageError: no such engine.
        RecGuideError: a published model that cannot be served here; names everything missing.
    """
    if asked not in ENGINES:
        raise UsageError(f"Unknown engine '{asked}'.", nearest(asked, ENGINES))
    if asked == "embedded":
        return asked, "asked for"
    cuda = has_cuda() if cuda is None else cuda
    sglang = installed_version() if sglang is None else sglang
    if asked == "sglang":
        check_version(sglang)
        return asked, "asked for"
    if model in registry.HUB_IDS:
        missing = missing_parts(model, cuda=cuda, sglang=sglang)
        if missing:
            raise RecGuideError(
                f"{model} cannot be served here: {', '.join(missing)}.",
                'On a CUDA machine: pip install "recguide[sglang,hub]". Elsewhere: '
                "--model nld-tiny, or --engine embedded with a local folder.",
            )
    if cuda and sglang is not None:
        check_version(sglang)
        return "sglang", f"a CUDA device and SGLang {sglang}"
    if cuda:
        return "embedded", "SGLang is not installed"
    return "embedded", "no CUDA device"


def missing_parts(model: str, *, cuda: bool, sglang: str | None) -> list[str]:
    """What a published model lacks on this machine; empty when it can be served."""
    missing = []
    if not cuda:
        missing.append("no CUDA device")
    if sglang is None:
        missing.append("SGLang is not installed")
    where = weights_of(model)
    if where is not None:
        missing.append(where)
    return missing


def weights_of(model: str) -> str | None:
    """Why a hub model's weights cannot be had without asking the network, None if they can.

    They count as reachable when the hub client is installed and not offline.
    """
    hub_id = registry.HUB_IDS.get(model, model)
    if importlib.util.find_spec("huggingface_hub") is None:
        return f"no weights of {hub_id} (huggingface-hub is not installed)"
    from huggingface_hub import constants, snapshot_download

    try:
        snapshot_download(hub_id, local_files_only=True)
    except Exception:
        if constants.HF_HUB_OFFLINE:
            return f"no weights of {hub_id} (not in the hub cache, and the hub is offline)"
        return None if _hub_answers() else f"no weights of {hub_id} (the hub cannot be reached)"
    return None


def _hub_answers() -> bool:
    """The hub's address can be connected to within two seconds."""
    import socket
    from urllib.parse import urlsplit

    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    try:
        port = address.port or 443
        with socket.create_connection((address.hostname or "", port), timeout=2):
            return True
    except OSError:
        return False


def server_command(
    config: ServerConfig, settings_file: Path, *, folder: Path | None = None
) -> Command:
    """Check a configuration and turn it into SGLang's command line.

    Writes `settings_file` for the plugin.

    Args:
        folder: the checkpoint, when it is resolved already.

    Raises:
        RecGuideError: model, tables or flags do not fit.
    """
    check_extra(config.extra)
    folder = folder or registry.resolve(config.model)
    cpu = config.device == "cpu" or (config.device == "auto" and not has_cuda())
    notes = [f"model {config.model}: {folder}"]
    plugin, remarks = resolve_tables(config, folder, "cpu" if cpu else device_name())
    write_settings(settings_file, plugin)
    env = {VARIABLE: str(settings_file), "SGLANG_EXTERNAL_MODEL_PACKAGE": MODELS_PACKAGE}
    if cpu:
        # Bound OpenMP threads that share cores with other processes run thirty times slower.
        ranks = "|".join(str(rank) for rank in range(config.tp * config.dp))
        env |= {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": ranks}
        env["OMP_NUM_THREADS"] = "1"
    argv = [sys.executable, "-m", "sglang.launch_server", *_arguments(config, folder, cpu)]
    return Command([*argv, *config.extra], env, notes + remarks)


def _arguments(config: ServerConfig, folder: Path, cpu: bool) -> list[str]:
    argv = ["--model-path", str(folder), "--host", config.host, "--port", str(config.port)]
    argv += ["--served-model-name", config.served_name or config.model, "--enable-metrics"]
    if config.drafter is not None:
        argv += ["--speculative-algorithm", "DFLASH"]
        argv += ["--speculative-draft-model-path", config.drafter]
    else:
        argv += ["--speculative-algorithm", "RECGUIDE"]
    chosen: Mapping[str, object] = {
        "--dtype": ("float32" if cpu else "auto") if config.dtype == "auto" else config.dtype,
        "--context-length": config.context,
        "--max-total-tokens": config.kv_tokens or (8192 if cpu else 0),
        "--max-running-requests": config.max_requests or (8 if cpu else 0),
        "--tp-size": config.tp if config.tp > 1 else 0,
        "--dp-size": config.dp if config.dp > 1 else 0,
        "--api-key": config.api_key,
    }
    if config.drafter is None and not cpu:
        # Those are SGLang's graphs of one width; the plugin captures its own.
        argv.append("--disable-cuda-graph")
    for flag, value in chosen.items():
        if value:
            argv += [flag, str(value)]
    if cpu:
        argv += ["--device", "cpu", "--mem-fraction-static", "0.05"]
        if "--attention-backend" not in config.extra:
            argv += ["--attention-backend", "torch_native"]
    return argv


def check_extra(extra: Sequence[str]) -> None:
    """Refuse flags after `--` that RecGuide sets itself.

    Raises:
        UsageError: naming the option to use instead.
    """
    for flag in extra:
        name = flag.split("=")[0]
        if name in OURS:
            raise UsageError(
                f"{name} cannot be given after --: RecGuide sets it.", f"Use {OURS[name]}."
            )


def resolve_tables(
    config: ServerConfig, folder: Path, device: str
) -> tuple[PluginSettings, list[str]]:
    """The plugin's settings with its policy found and checked, and notes for the user.

    Raises:
        DataError: the method needs a policy and there is none, or the given one does not fit.
    """
    from dataclasses import replace

    plugin = replace(config.plugin, model=config.model, device=device)
    if plugin.probe is not None:
        return plugin, [f"probe: {plugin.probe}"]
    if config.drafter is not None:
        return plugin, [f"method dflash: SGLang's own, drafter {config.drafter}"]
    try:
        tuned = load_tuned(
            config.model,
            content_hash(folder),
            device,
            policy=None if plugin.policy is None else Path(plugin.policy),
            force=plugin.force,
            engine="sglang",
        )
    except DataError as error:
        if plugin.policy is not None or plugin.method in ("adaptive", "recguide"):
            raise
        return plugin, [f"policy: none ({error.cause}) {error.remedy}"]
    path = tuned.policy.path
    assert path is not None, "a policy that was read has a path"
    notes = [f"policy: {path} ({tuned.policy.digest[:12]})", *tuned.notes]
    return replace(plugin, policy=str(path.resolve())), notes


def device_name() -> str:
    """Name of the CUDA device under which tables are looked for, e.g. `b200`."""
    import torch

    return short_gpu_name(torch.cuda.get_device_name(0))
