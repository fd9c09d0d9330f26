"""The engine in a thread of its own: messages in, pieces of answers out, asleep when idle.

Coroutines never touch the engine. They put messages into a queue that is emptied before every
step, so an abort takes effect within one round. Results cross back once per step.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Literal

from recguide_core.engine.core import EngineCore
from recguide_core.engine.events import Event
from recguide_core.errors import RecGuideError
from recguide_core.records import Finish
from recguide_core.serving.branch_watch import BranchWatch
from recguide_core.serving.generation import Generation, Piece
from recguide_core.serving.recovery import Recovery

log = logging.getLogger("recguide.engine")

Message = tuple[Literal["submit", "abort"], Generation] | None
Delivery = tuple[Generation, Piece | None]
"""A piece of an answer; None says that the engine has accepted the request."""

NO_PROGRESS_WAIT = 0.01


class EngineFaultError(RecGuideError):
    """The engine broke; the answer is lost, the server goes on."""


class EngineThread:
    """Runs an engine and speaks with one event loop.

    Args:
        on_piece: called in the event loop with every piece before its reader gets it.
    """

    def __init__(
        self, engine: EngineCore, on_piece: Callable[[Generation, Piece], None] | None = None
    ) -> None:
        self.engine = engine
        self.branches = BranchWatch()
        self.recovery = Recovery(engine)
        self.alive = False
        self._on_piece = on_piece
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._parked: list[Generation] = []
        self._live: dict[str, Generation] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._main, name="recguide-engine", daemon=True)
        engine.observers.append(self.branches)

    # -- the event loop's side --------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; results come back to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.alive = True
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Let the thread end after its current step."""
        self._messages.put(None)
        self._thread.join(timeout)

    def submit(self, generation: Generation) -> asyncio.Future[None]:
        """Hand a request over; the future tells that the engine has accepted or refused it.

        Raises:
            EngineFaultError: the engine is broken; nothing was handed over.
        """
        if not self.alive:
            raise EngineFaultError("The engine has stopped.", "Restart the server; see its log.")
        generation.accepted = asyncio.get_running_loop().create_future()
        self._messages.put(("submit", generation))
        return generation.accepted

    def abort(self, generation: Generation) -> None:
        """End a request within one round; no harm if it has ended already."""
        self._messages.put(("abort", generation))

    def busy_seconds(self) -> float:
        """How long the current step has been running; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def where(self) -> str:
        """The thread's stack, for the log of a stall."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "no frame"

    # -- the engine's side ------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._read_messages():
                self._step()
        except Exception:
            log.exception("the engine thread ends")
        finally:
            self.alive = False
            while not self._messages.empty():
                message = self._messages.get()
                if message is not None and message[0] == "submit":
                    self._live[message[1].key] = message[1]
            left = [*self._live.values(), *self._parked]
            self._publish_errors(left, "The engine has stopped.")

    def _read_messages(self) -> bool:
        """Handle what has arrived, waiting for something when there is nothing to do."""
        wait = self.engine.idle and not self.recovery.active
        while True:
            try:
                message = self._messages.get(block=wait)
            except queue.Empty:
                break
            if message is None:
                return False
            self._handle(*message)
            wait = False
        if self._parked and not self.recovery.active:
            parked, self._parked = self._parked, []
            self._submit_all(parked)
        return True

    def _handle(self, kind: str, generation: Generation) -> None:
        if kind == "submit":
            self._submit_all([generation])
        elif generation in self._parked:
            self._parked.remove(generation)
            self._publish_errors([generation], "The request was aborted.")
        else:
            self.recovery.release(generation.key)
            self.engine.abort(generation.key)

    def _submit_all(self, generations: list[Generation]) -> None:
        if self.recovery.active:
            self._parked += generations
            return
        deliveries: list[Delivery] = []
        for generation in generations:
            try:
                self.engine.submit(generation.request, generation.block)
            except RecGuideError as error:
                deliveries.append((generation, Piece("", time.perf_counter(), error=error)))
                continue
            self._live[generation.key] = generation
            if generation.detailed:
                self.branches.wanted.add(generation.key)
            deliveries.append((generation, None))
        self._send(deliveries)

    def _step(self) -> None:
        self.recovery.before_step()
        if self.engine.idle:
            return
        steps = self.engine.counters.steps
        self._step_began = time.monotonic()
        try:
            events = self.engine.step()
        except Exception as error:
            log.exception("a step failed; its requests are recomputed one by one")
            self.recovery.after_fault(error)
            events = self._catch_up()
        finally:
            self._step_began = None
        self._publish(events)
        if not events and self.engine.counters.steps == steps:
            time.sleep(NO_PROGRESS_WAIT)

    def _catch_up(self) -> list[Event]:
        """Events for tokens that the failed step emitted without telling; lost ends are errors."""
        scheduler = self.engine.scheduler
        lives = [*scheduler.running.values(), *scheduler.waiting, *self.recovery.held()]
        known = {live.request.key: live for live in lives}
        events, lost = [], []
        for key, generation in self._live.items():
            live = known.get(key)
            if live is None and key not in self.recovery.failed:
                lost.append(generation)
            elif live is not None and len(live.tokens) > generation.sent:
                fresh = slice(generation.sent, None)
                event = Event(key, live.tokens[fresh], live.origins[fresh])
                event.logprobs, event.top_logprobs = live.logprobs[fresh], live.top_logprobs[fresh]
                events.append(event)
        self._publish_errors(lost, "The engine failed at the end of this answer.")
        return events

    # -- results ----------------------------------------------------------------------------

    def _publish(self, events: Iterable[Event]) -> None:
        now = time.perf_counter()
        deliveries: list[Delivery] = []
        for event in events:
            generation = self._live.get(event.key)
            if generation is not None:
                deliveries.append((generation, self._piece(generation, event, now)))
        self._send(deliveries)

    def _piece(self, generation: Generation, event: Event, now: float) -> Piece:
        generation.stats.add(event)
        generation.sent += len(event.tokens)
        if event.tokens and generation.first is None:
            generation.first = now
        text = generation.text.take()
        if event.finished is not None:
            text += generation.text.finish()
            self._close(generation, event, now)
        piece = Piece(text, now, event, generation.sent - len(event.tokens))
        if generation.detailed:
            piece.branches = self.branches.latest.get(event.key, [])
        return piece

    def _close(self, generation: Generation, event: Event, now: float) -> None:
        done = event.finished
        assert done is not None
        reason = self.recovery.failed.pop(event.key, None)
        if reason is not None:
            done.finish, done.error = Finish.ERROR, reason
        generation.finished, generation.end = done, now
        self._forget(generation)

    def _forget(self, generation: Generation) -> None:
        self._live.pop(generation.key, None)
        self.branches.wanted.discard(generation.key)

    def _publish_errors(self, generations: Iterable[Generation], cause: str) -> None:
        now = time.perf_counter()
        deliveries: list[Delivery] = []
        for generation in generations:
            self._forget(generation)
            error = EngineFaultError(cause, "Send the request again.")
            deliveries.append((generation, Piece("", now, error=error)))
        self._send(deliveries)

    def _send(self, deliveries: list[Delivery]) -> None:
        if not deliveries or self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._deliver, deliveries)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for generation, piece in deliveries:
            accepted = generation.accepted
            if accepted is not None and not accepted.done():
                if piece is not None and piece.error is not None:
                    accepted.set_exception(piece.error)
                else:
                    accepted.set_result(None)
            if piece is None:
                continue
            if self._on_piece is not None:
                self._on_piece(generation, piece)
            generation.inbox.put_nowait((generation, piece))
            generation.chunk_at = piece.at
