"""Helpers beside the tests, and one embedded engine for all of them."""

import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def embedded():
    from engines import Embedded

    return Embedded()


@pytest.fixture(scope="session")
def policy(tmp_path_factory, embedded):
    from policy_files import write_policy_files

    return write_policy_files(tmp_path_factory.mktemp("policy"), embedded.model.hash)


@pytest.fixture(scope="session")
def prompts(embedded):
    from engines import TEXTS

    return [embedded.encode(text) for text in TEXTS]


@pytest.fixture(scope="session")
def autoregressive(embedded, prompts):
    """AR's tokens of every prompt, 96 each."""
    from engines import greedy

    done = embedded.run([greedy(str(i), ids, 96) for i, ids in enumerate(prompts)])
    return [done[str(i)].tokens.tolist() for i in range(len(prompts))]
