"""What all routes share: model, engine thread, limits, metrics. Built once at start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recguide_core import __version__
from recguide_core.engine.core import EngineCore
from recguide_core.errors import DataError
from recguide_core.model.registry import LoadedModel
from recguide_core.model.tokenizer import Tokenizer
from recguide_core.serving.admission import Admission
from recguide_core.serving.engine_thread import EngineThread
from recguide_core.serving.generation import Generation, Piece
from recguide_core.serving.prometheus import ServerMetrics
from recguide_core.serving.settings import ServerSettings
from recguide_core.serving.streaming import Vocabulary


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """An engine and what the API says of it.

    Attributes:
        methods: name -> planner index; default_method: of requests that name none.
        artefacts: table or policy in force -> its hash; remarks: one line each on them.
        report: seconds and bytes of the start-up, by part.
    """

    model: LoadedModel
    engine: EngineCore
    methods: Mapping[str, int]
    default_method: str
    artefacts: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)


class Runtime:
    """Everything behind the routes.

    Raises:
        DataError: the model has no tokenizer.
    """

    def __init__(self, served: ServedEngine, settings: ServerSettings) -> None:
        if served.model.tokenizer is None:
            raise DataError(
                f"{served.model.name} has no tokenizer.", "Add tokenizer.json to its folder."
            )
        self.served = served
        self.settings = settings
        self.model = served.model
        self.engine = served.engine
        self.methods = served.methods
        self.default_method = served.default_method
        self.tokenizer: Tokenizer = served.model.tokenizer
        self.vocabulary = Vocabulary(self.tokenizer, served.model.eos_ids)
        self.started = time.time()
        self.admission = Admission(self.engine.settings.slots, settings.max_queue)
        self.thread = EngineThread(self.engine, self._on_piece)
        self.metrics = ServerMetrics(
            self.engine,
            self.admission,
            self.thread.branches,
            {
                "model": settings.served_name,
                "model_hash": self.model.hash,
                "method": self.default_method,
                "lossless": self.guarantee["level"],
                "version": __version__,
            },
        )
        self.stalled = False

    def room(self, prompt: int) -> int:
        """Tokens that an answer to a prompt of `prompt` tokens may have at most."""
        pool = self.engine.pages.pages * self.engine.pages.page_size
        return max(1, min(self.engine.context, pool) - prompt)

    @property
    def guarantee(self) -> dict[str, str]:
        """What may be said of the text beside plain decoding, by number format.

        Forwards of different widths sum in different orders, so equality holds but for
        near-ties; `recguide bench` checks each run and shows every one.
        """
        dtype = str(self.model.transformer.dtype).removeprefix("torch.")
        return {
            "level": "near-tie-equal",
            "dtype": dtype,
            "meaning": "Every method gives plain autoregressive decoding's tokens, greedy or "
            "seeded; a token may differ only where the two best logits tie within rounding.",
        }

    def _on_piece(self, generation: Generation, piece: Piece) -> None:
        self.metrics.on_piece(generation, piece)
        if piece.last:
            done = generation.end is not None and generation.first is not None
            self.admission.leave(piece.at - generation.arrival if done else None)

    @property
    def healthy(self) -> bool:
        """The engine thread lives and moves."""
        return self.thread.alive and not self.stalled

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        return self.healthy and not self.admission.draining

    def info(self) -> dict[str, Any]:
        """The body of /server_info."""
        engine, config = self.engine, self.model.config
        limits = {
            name: getattr(self.settings, name)
            for name in (
                "max_queue",
                "request_timeout",
                "max_body",
                "max_nesting",
                "max_choices",
                "max_stops",
                "max_logprobs",
            )
        }
        return {
            "version": __version__,
            "model": {
                "name": self.settings.served_name,
                "hash": self.model.hash,
                "layers": config.layers,
                "hidden": config.hidden,
                "vocabulary": config.vocab,
                "context": engine.context,
                "adapter": self.model.transformer.adapter is not None,
                "device": str(self.model.transformer.device),
            },
            "lossless": self.guarantee,
            "methods": list(self.methods),
            "default_method": self.default_method,
            "default_temperature": self.settings.temperature,
            "artefacts": dict(self.served.artefacts),
            "remarks": list(self.served.remarks),
            "engine": {
                "max_requests": engine.settings.max_requests,
                "slots": engine.settings.slots,
                "kv_tokens": engine.pages.pages * engine.pages.page_size,
                "kv_free_tokens": engine.pages.free_pages * engine.pages.page_size,
                "batching": engine.settings.batching,
                "prefill_chunk": engine.settings.prefill_chunk,
                "clock": engine.clock.name,
            },
            "limits": limits,
            "start_up": dict(self.served.report),
            "uptime_seconds": round(time.time() - self.started, 3),
        }
