"""The tables and policies that ship are those of the bundled weights, and fit together."""

import pytest

from recguide_core.model.registry import TINY, resolve
from recguide_core.model.weights import content_hash
from recguide_core.tables import read_policy, read_table, shipped_path
from recguide_core.tuning.guidance import load_tuned

OWN = "cpu/nld-tiny"
CLOCKS = ("b200/nld-8b", "b200/nld-14b")
REMAKE = "weights changed: run scripts/make_tables.sh"


@pytest.fixture(scope="module")
def bundled() -> str:
    return content_hash(resolve(TINY))


@pytest.mark.parametrize("kind", ["cost", "value", "branch"])
def test_tables_belong_to_the_bundled_weights_and_to_any_cpu(kind: str, bundled: str) -> None:
    table = read_table(shipped_path(OWN, kind), kind)
    assert table.provenance["model_hash"] == bundled, REMAKE
    assert table.provenance["device"] == "cpu-any"


@pytest.mark.parametrize("name", [OWN, *CLOCKS])
def test_policies_belong_to_the_bundled_weights_and_their_tables(name: str, bundled: str) -> None:
    path = shipped_path(name, "policy")
    assert read_policy(path).provenance["model_hash"] == bundled, REMAKE
    tuned = load_tuned(TINY, bundled, "cpu", policy=path)
    assert tuned.guidance.branches is not None
    assert tuned.prompts
    assert all(rho > 0 for rho in tuned.guidance.rho.values())


def test_shipped_policy_is_found_by_default_on_any_cpu(bundled, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    tuned = load_tuned(TINY, bundled, "cpu")
    assert any("cpu-any" in note for note in tuned.notes)
