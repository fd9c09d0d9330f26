"""Runs the app under uvicorn: signals, drain, log format."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from recguide_core.errors import RecGuideError
from recguide_core.serving.app import build_app
from recguide_core.serving.runtime import Runtime

DRAIN_POLL = 0.05
QUIT_GRACE = 5
KEEP_ALIVE = 75
"""Longer than common clients keep an idle connection: whoever closes first must not be the server,
or a request that is just being sent is lost."""


class Server(uvicorn.Server):
    """A uvicorn server that finishes its answers before it leaves.

    The first SIGTERM or SIGINT turns new requests away with 503 and lets running ones end, for
    `drain_timeout` seconds at most; a second one ends at once.
    """

    def __init__(self, runtime: Runtime, on_start: Callable[[str], None] | None = None) -> None:
        settings = runtime.settings
        super().__init__(
            uvicorn.Config(
                build_app(runtime),
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                timeout_graceful_shutdown=QUIT_GRACE,
                timeout_keep_alive=KEEP_ALIVE,
            )
        )
        self._runtime = runtime
        self._on_start = on_start
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started and self._on_start is not None:
            self._on_start(self.address)

    @property
    def address(self) -> str:
        """http://host:port as it is bound."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._runtime.admission.draining:
            self.force_exit = True
            self.should_exit = True
            return
        self._runtime.admission.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._runtime.admission.draining and self._drain is None:
            self._drain = asyncio.create_task(self._leave_when_done())
        return await super().on_tick(counter)

    async def _leave_when_done(self) -> None:
        waited = 0.0
        while self._runtime.admission.active and waited < self._runtime.settings.drain_timeout:
            await asyncio.sleep(DRAIN_POLL)
            waited += DRAIN_POLL
        self.should_exit = True


def serve(runtime: Runtime, on_start: Callable[[str], None] | None = None) -> None:
    """Serve until a signal.

    Args:
        on_start: called with the address once the server listens.

    Raises:
        RecGuideError: the address cannot be bound.
    """
    server = Server(runtime, on_start)
    try:
        server.run()
    except SystemExit:
        # uvicorn exits when it cannot bind; the reason is in its log.
        settings = runtime.settings
        raise RecGuideError(
            f"Cannot listen on {settings.host}:{settings.port}.",
            "Choose another --port, or stop what listens there.",
        ) from None
