"""A real server on a free port of 127.0.0.1, in a thread, with its runtime within reach."""

import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import openai
import pytest
import torch

from recguide_core.engine.drafter import DFlashCache
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.planners import METHODS
from recguide_core.engine.settings import EngineSettings
from recguide_core.serving.launch import LaunchConfig, launch
from recguide_core.serving.runtime import Runtime, ServedEngine
from recguide_core.serving.server import Server
from recguide_core.serving.settings import ServerSettings
from recguide_core.tiny.drafter import DFlashDrafter, DrafterShape

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from harness import toy_guidance

MODEL = "nld-tiny"
QUESTION = "Gina has 14 eggs. Then Gina gives 5 eggs to Chloe. How many eggs does Gina have?"


@dataclass
class Live:
    """A running server and what tests look at."""

    runtime: Runtime
    server: Server
    thread: threading.Thread
    url: str

    def client(self, **options):
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60, **options
        )

    def post(self, path, body, **options):
        return httpx.post(f"{self.url}{path}", json=body, timeout=60, **options)

    def chat(self, **changes):
        body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
        return self.post("/v1/chat/completions", {**body, "temperature": 0, **changes})

    def settled(self, seconds=20.0):
        """Wait until nothing runs, then give (free slots, free KV tokens) back as one value."""
        engine = self.runtime.engine
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.runtime.admission.active == 0 and engine.idle:
                break
            time.sleep(0.01)
        return {
            "active": self.runtime.admission.active,
            "running": len(engine.scheduler.running),
            "waiting": len(engine.scheduler.waiting),
            "kv": engine.pages.free_pages == engine.pages.pages,
        }

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)


EMPTY = {"active": 0, "running": 0, "waiting": 0, "kv": True}


@pytest.fixture(scope="session")
def served() -> ServedEngine:
    """The bundled model with every method; tests start servers over it.

    Tables of the adaptive methods are made up and the drafter of dflash is untrained: the text
    does not depend on either, and the tests then need no trained artefact.
    """
    config = LaunchConfig(
        method="overlap", block_size=8, engine=EngineSettings(max_requests=8, threads=1)
    )
    made = launch(config)
    planners = {name: made.engine.planners[place] for name, place in made.methods.items()}
    for name in METHODS:
        planners.setdefault(name, make_planner(name, 8, toy_guidance()))
    made.engine.planners = list(planners.values())
    return replace(made, methods={name: place for place, name in enumerate(planners)})


def untrained_drafter(model):
    torch.manual_seed(0)
    drafter = DFlashDrafter(DrafterShape(), model.transformer.weights.embed)
    return DFlashCache(drafter, model.config.mask_id)


@pytest.fixture(scope="session")
def start_server(served):
    """Start a server: `start_server(engine={...}, **server settings)`."""
    running = []

    def start(engine=None, **settings) -> Live:
        built = Engine(
            served.model,
            planners=served.engine.planners,
            settings=replace(served.engine.settings, **(engine or {})),
            drafter=untrained_drafter(served.model),
        )
        runtime = Runtime(replace(served, engine=built), ServerSettings(MODEL, port=0, **settings))
        listening = threading.Event()
        server = Server(runtime, on_start=lambda _: listening.set())
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        assert listening.wait(20)
        live = Live(runtime, server, thread, server.address)
        running.append(live)
        return live

    yield start
    for live in running:
        live.stop()


@pytest.fixture(scope="session")
def shared(start_server) -> Live:
    """One server for every test that leaves it as it was."""
    return start_server()


@pytest.fixture
def live(shared) -> Live:
    """The shared server; the test fails if it leaves a slot or a page behind."""
    yield shared
    assert shared.settled() == EMPTY


@pytest.fixture(scope="session")
def empty_server():
    """What `settled` says of a server that has lost nothing."""
    return EMPTY


@pytest.fixture(scope="session")
def question():
    return QUESTION
