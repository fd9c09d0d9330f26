"""What the options `--engine` and `--tp` of the commands that measure mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    from recguide_core.bench.config import BenchConfig
    from recguide_core.bench.remote import Address
    from recguide_core.bench.run import Site
    from recguide_core.datasets import Loaded
    from recguide_core.model.checkpoint import Checkpoint
    from recguide_core.model.registry import LoadedModel
    from recguide_core.tuning.settings import TuneSettings


def measuring_engine(engine: str, tp: int) -> str:
    """Check the engine that a command is to measure with.

    Raises:
        UsageError: no such engine, or an option that it does not have.
        RecGuideError: SGLang is asked for and missing. MismatchError: it is of another release.
    """
    from recguide_core.calibration.settings import EMBEDDED, SGLANG
    from recguide_core.errors import UsageError, nearest

    if engine not in (EMBEDDED, SGLANG):
        raise UsageError(f"Unknown engine '{engine}'.", nearest(engine, (EMBEDDED, SGLANG)))
    if tp < 1:
        raise UsageError(f"--tp is {tp}.", "--tp must be at least 1.")
    if engine == EMBEDDED:
        if tp != 1:
            raise UsageError(
                "--tp is for SGLang, and the embedded engine was chosen.",
                "Leave it out, or use --engine sglang.",
            )
        return engine
    from recguide_core.sglang_plugin.versions import check_version, installed_version

    check_version(installed_version())
    return engine


def dtype_for(ctx: typer.Context, engine: str) -> str:
    """The option --dtype; SGLang takes the checkpoint's own where nothing was said."""
    from recguide_cli import console
    from recguide_core.calibration.settings import SGLANG

    given: str = ctx.params["dtype"]
    return "auto" if engine == SGLANG and console.origins(ctx)["dtype"] == "default" else given


@contextmanager
def bench_site(config: BenchConfig, loaded: Loaded, address: Address | None) -> Iterator[Site]:
    """Where a run sends its requests; a SGLang server of ours runs as long as the block."""
    from recguide_cli import console
    from recguide_core.calibration.settings import SGLANG

    if config.engine == SGLANG:
        from recguide_core.bench.sglang_site import sglang_site

        console.note(f"Starting SGLang with {config.model} ...")
        with sglang_site(config, loaded) as site:
            yield site
    elif address is not None:
        from recguide_core.bench.server_site import ServerSite

        yield ServerSite(config, loaded, address)
    else:
        from recguide_core.bench.embedded import EmbeddedSite

        yield EmbeddedSite(config, loaded)


def recorder(settings: TuneSettings, tp: int) -> tuple[LoadedModel | Checkpoint, Any]:
    """A model's files, and what records its answers: the embedded model, or the served one."""
    from functools import partial

    from recguide_core.calibration.settings import SGLANG

    if settings.engine == SGLANG:
        from recguide_core.model.checkpoint import read_checkpoint
        from recguide_core.sglang_plugin import drive

        checkpoint = read_checkpoint(settings.model)
        device = drive.Device(settings.device, settings.dtype, tp, settings.threads)
        return checkpoint, partial(drive.record, checkpoint, device=device)
    from recguide_core.calibration.record import record_prompts
    from recguide_core.model.registry import load_model

    loaded = load_model(settings.model, device=settings.device, dtype=settings.dtype)
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    return loaded, partial(record_prompts, loaded)
