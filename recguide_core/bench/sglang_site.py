"""A SGLang server of our own as a site of bench: one server, every method asked for by request.

Jobs, policy and lossless check are those of the embedded engine, so the rows of both compare. The
check replays AR with the embedded engine, loaded when the first cell is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recguide_core.bench.config import BenchConfig, Cell
from recguide_core.bench.embedded import EmbeddedSite
from recguide_core.bench.remote import Address, parse_address
from recguide_core.bench.rows import RequestRow
from recguide_core.bench.sglang_target import SglangTarget
from recguide_core.datasets import Loaded
from recguide_core.errors import UsageError
from recguide_core.model.checkpoint import read_checkpoint
from recguide_core.model.registry import load_model
from recguide_core.records import MAX_BLOCK
from recguide_core.sglang_plugin.drive import Device
from recguide_core.sglang_plugin.launch import ServerConfig
from recguide_core.sglang_plugin.server import free_port, running_server
from recguide_core.sglang_plugin.settings import PluginSettings
from recguide_core.sglang_plugin.versions import check_version, installed_version

LAYOUTS = {"ragged": "flat", "padded": "uniform", "bucketed": "bucketed"}
"""The plugin's name of each way in which a step holds blocks of several sizes."""
SPARE_TOKENS = 256
"""Slots of the pool that no request is counted on."""
TIMEOUT_S = 600.0


class SglangSite(EmbeddedSite):
    """Everything that the cells of a run on SGLang share; `serving` starts the server."""

    def __init__(self, config: BenchConfig, loaded: Loaded) -> None:
        check_version(installed_version())
        check_options(config)
        self._address: Address | None = None
        self._whole = False
        super().__init__(config, loaded)
        # Emptied before every window; within one, a prompt sent twice is found there.
        self.about["prefix_cache"] = True

    def _read(self, config: BenchConfig) -> Any:
        return read_checkpoint(config.model)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The server runs as long as the block."""
        server = self.server_config(free_port())
        device = Device(self._config.device, threads=self._config.threads)
        with running_server(server, env=device.env) as (url, command):
            self._address = parse_address(url, TIMEOUT_S, None)
            self.about["engine"] = {
                "name": f"sglang {installed_version()}",
                "tp": self._config.tp,
                "notes": command.notes,
            }
            yield

    def server_config(self, port: int) -> ServerConfig:
        """The server that holds every cell of the run."""
        config = self._config
        most = max(cell.concurrency for cell in config.cells())
        policy = None if self._tuned is None else str(self._tuned.policy.path)
        default, *others = config.methods
        return ServerConfig(
            model=config.model,
            plugin=PluginSettings(
                method=default,
                also=tuple(others),
                layout=LAYOUTS[config.batching],
                policy=policy,
                force=config.force,
                paper_rule=True,
            ),
            port=port,
            device=config.device.split(":")[0],
            dtype=config.dtype,
            kv_tokens=config.kv_tokens or most * self._longest() + SPARE_TOKENS,
            max_requests=most,
            tp=config.tp,
            extra=(
                "--log-level",
                "warning",
                "--skip-server-warmup",
                "--chunked-prefill-size",
                str(config.prefill_chunk),
            ),
        )

    def _longest(self) -> int:
        """Slots that one request may hold: its sequence, and what a decode step reserves."""
        context = self._model.config.max_positions
        if any(job.prompt.later for job in self.jobs):
            return int(context) + 2 * MAX_BLOCK
        jobs = (*self.jobs, *self.warmup, *self.cooldown)
        longest = max(len(job.tokens) + job.max_tokens for job in jobs)
        return min(longest, context) + 2 * MAX_BLOCK

    def target(self, cell: Cell) -> Any:
        assert self._address is not None, "cells are measured while the server runs"
        return SglangTarget(self._address, cell)

    def check(self, rows: Sequence[RequestRow]) -> None:
        """Writes into each row whether its text is the embedded engine's AR text."""
        if not self._whole:
            config = self._config
            self._model = load_model(config.model, device=config.device, dtype=config.dtype)
            self._whole = True
        super().check(rows)


def check_options(config: BenchConfig) -> None:
    """Refuse what a server process cannot do.

    Raises:
        UsageError: naming the first such option.
    """
    refused = (
        ("--clock", config.clock != "wall", "a server runs on the wall's clock"),
        ("--attention-backend", config.attention_backend is not None, "SGLang chooses its own"),
        ("--base-url", config.base_url is not None, "that server runs already"),
    )
    for option, given, why in refused:
        if given:
            raise UsageError(
                f"{option} does not go with --engine sglang: {why}.", f"Leave {option} out."
            )
    if "dflash" in config.methods:
        raise UsageError(
            "--engine sglang does not measure dflash: it is SGLang's own algorithm there.",
            "Start it with `recguide serve --drafter PATH`, and measure it with --base-url.",
        )


@contextmanager
def sglang_site(config: BenchConfig, loaded: Loaded) -> Iterator[SglangSite]:
    """A site whose server is up.

    Raises:
        RecGuideError: no SGLang, or its server ended; UsageError: an option that it has not.
    """
    site = SglangSite(config, loaded)
    with site.serving():
        yield site
