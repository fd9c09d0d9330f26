"""Which attention back end runs where, and the reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recguide_core.errors import CapacityError, UsageError
from recguide_core.kernels import backends
from recguide_core.kernels.backends import Target, choose

CUDA = Target("cuda", "bfloat16", 128, 4, 16, capability=(9, 0))
CPU = Target("cpu", "float32", 64, 2, 16)


@pytest.fixture
def everything_installed(monkeypatch) -> None:
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())


def test_cpu_uses_torch_and_says_why() -> None:
    choice = choose(CPU)
    assert choice.name == "torch"
    assert choice.reasons == {"triton": "needs a CUDA device", "flashinfer": "needs a CUDA device"}


def test_cuda_uses_triton(everything_installed) -> None:
    choice = choose(CUDA)
    assert choice.name == "triton"
    assert choice.reasons == {"flashinfer": "not chosen", "torch": "not chosen"}
    assert choose(CUDA, "flashinfer").name == "flashinfer"
    assert choose(CUDA, "torch").name == "torch"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"head_dim": 96}, "head size 96"),
        ({"group": 8}, "8 heads"),
        ({"page": 32}, "pages of 32"),
        ({"eos_ids": 5}, "EOS"),
        ({"capability": (8, 0)}, "9.0"),
    ],
)
def test_shapes_outside_the_table_fall_back(everything_installed, change, word) -> None:
    choice = choose(replace(CUDA, **change))
    assert choice.name == "torch"
    assert word in choice.reasons["triton"]


def test_missing_packages_are_named(monkeypatch) -> None:
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    choice = choose(CUDA)
    assert choice.name == "torch"
    assert "not installed" in choice.reasons["triton"]
    assert "not installed" in choice.reasons["flashinfer"]


def test_requests_that_cannot_be_met() -> None:
    with pytest.raises(CapacityError, match="needs a CUDA device"):
        choose(CPU, "triton")
    with pytest.raises(UsageError, match="Did you mean 'triton'"):
        choose(CPU, "tritn")
