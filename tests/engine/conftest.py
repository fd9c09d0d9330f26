"""Makes the shared helpers importable, pins the threads, loads the models once."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny():
    """The bundled nld-tiny."""
    from recguide_core.model.registry import load_model

    return load_model("nld-tiny", max_positions=1024)


@pytest.fixture(scope="session")
def random_tiny(tmp_path_factory):
    """A random model in the published layout, with an adapter: its drafts are nearly all wrong."""
    from checkpoints import published_config, write_checkpoint

    from recguide_core.model.registry import load_model

    folder = write_checkpoint(tmp_path_factory.mktemp("random"), published_config("14b"))
    return load_model(str(folder), max_positions=1024)


@pytest.fixture(scope="session")
def random_prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(128, 384, n).tolist() for n in (1, 2, 17, 5, 33, 16, 9, 40)]


@pytest.fixture(scope="session")
def pinned(tiny):
    """Six demo prompts over the categories and two of noise, and their AR outputs.

    A good model accepts nearly all drafts on the former; noise makes it unsure.
    """
    from harness import demo_prompts, generate, planner_of

    rng = np.random.default_rng(11)
    prompts = demo_prompts(tiny, 8)
    for place, length in ((2, 9), (5, 25)):
        prompts[place] = rng.integers(16, tiny.config.vocab, length).tolist()
    assert len({len(p) for p in prompts}) >= 5
    return prompts, generate(tiny, planner_of("ar"), prompts, 32, max_requests=1)
