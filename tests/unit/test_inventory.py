"""What a machine has, and how its parts are named in tables."""

import pytest

from recguide_core import inventory


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
    ],
)
def test_gpus_have_the_names_of_the_tables(full, short):
    assert inventory.short_gpu_name(full) == short


def test_absent_packages_are_none():
    found = inventory.versions()
    assert found["numpy"]
    assert found["recguide"]
    assert set(inventory.PACKAGES) < set(found)


def test_a_machine_has_at_least_one_core():
    assert inventory.usable_cores() >= 1
    assert inventory.cpu_name()


def test_without_torch_nothing_is_usable(monkeypatch):
    monkeypatch.setattr(inventory.importlib.util, "find_spec", lambda name: None)
    assert [b.name for b in inventory.back_ends() if b.usable] == []
    assert [d.kind for d in inventory.devices()] == ["cpu"]


@pytest.mark.parametrize(
    ("release", "words"), [("0.5.23", "one of the known good"), ("0.6.1", "known to work with")]
)
def test_doctor_tells_whether_the_sglang_here_is_a_known_one(monkeypatch, release, words):
    from recguide_core.sglang_plugin import versions

    monkeypatch.setattr(versions, "version", lambda name: release)
    found = next(b for b in inventory.back_ends() if b.name == "sglang")
    assert words in found.reason and "0.5.23" in found.reason
    assert not (found.usable and release != "0.5.23")


def test_tables_are_named_after_the_gpu_and_not_after_cuda(monkeypatch):
    torch = pytest.importorskip("torch", reason="needs torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert inventory.place_of("cuda:1") == "h200"
    assert inventory.place_of("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert inventory.place_of("cuda") == "cuda"
