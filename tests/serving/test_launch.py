"""From a configuration to a warm engine: methods, policy, report."""

import json

import pytest

from recguide_core.engine.settings import EngineSettings
from recguide_core.errors import DataError, RecGuideError, UsageError
from recguide_core.serving import launch as launching
from recguide_core.serving.launch import LaunchConfig, launch
from recguide_core.tuning.guidance import Tuned

SMALL = EngineSettings(max_requests=2, threads=1)


@pytest.fixture
def no_policy(monkeypatch):
    def missing(*_, **__):
        raise DataError("There is no policy file.", "Make it with `recguide tune`.")

    monkeypatch.setattr(launching, "load_tuned", missing)


@pytest.fixture
def toy_policy(monkeypatch):
    from harness import toy_guidance

    guidance = toy_guidance(hashes={"policy": "abc"})
    tuned = Tuned(guidance, 7, None, ["made up"])
    monkeypatch.setattr(launching, "load_tuned", lambda *_, **__: tuned)


def test_without_a_policy_auto_is_overlap(no_policy):
    served = launch(LaunchConfig(engine=SMALL))
    assert served.default_method == "overlap"
    assert "adaptive" not in served.methods and "recguide" not in served.methods
    assert served.methods["overlap"] == 0, "requests that name none get planner 0"
    assert "no policy file" in served.remarks[0]
    assert served.engine.idle and served.engine.counters.steps == 0, "warm-up is not counted"
    assert served.engine.pages.free_pages == served.engine.pages.pages
    json.dumps(dict(served.report), allow_nan=False)


def test_with_a_policy_auto_is_recguide(toy_policy):
    served = launch(LaunchConfig(engine=SMALL))
    assert served.default_method == "recguide"
    assert served.methods["recguide"] == 0
    assert served.artefacts == {"policy": "abc"}
    assert served.engine.settings.entropy_positions == 7, "as the policy was tuned"
    assert served.remarks == ("made up",)


@pytest.mark.parametrize("method", ["recguide", "adaptive"])
def test_a_method_that_needs_tables_says_so(no_policy, method):
    with pytest.raises(DataError, match="no policy file"):
        launch(LaunchConfig(method=method, engine=SMALL))


def test_wrong_names_are_refused():
    with pytest.raises(UsageError):
        LaunchConfig(method="magic")
    with pytest.raises(RecGuideError):
        launch(LaunchConfig(model="no-such-model"))
