"""Fixed or adaptive blocks where steps cannot be ragged, and what `auto` makes of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from policy_files import write_policy_files

from recguide_core.model.registry import bundled_folder
from recguide_core.model.weights import content_hash
from recguide_core.sglang_plugin.build import choose_planners
from recguide_core.sglang_plugin.fallback import _widest, judge_layout
from recguide_core.sglang_plugin.settings import PluginSettings
from recguide_core.tuning.guidance import load_tuned


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    digest = content_hash(bundled_folder())
    path = write_policy_files(tmp_path_factory.mktemp("tables"), digest)
    return path, load_tuned("nld-tiny", digest, "cpu", policy=path).guidance


def test_the_widest_of_many_is_the_largest_block():
    share = np.array([0.2, 0.5, 0.3])
    assert np.allclose(_widest(share, 1), share)
    assert np.allclose(_widest(share, 2), [0.04, 0.45, 0.51])
    assert _widest(share, 200)[-1] > 0.999


def test_alone_adapting_costs_nothing_so_it_wins(files):
    for layout in ("uniform", "bucketed"):
        verdict = judge_layout(files[1], 1, layout)
        assert not verdict.prefers_fixed, layout
    pair = [judge_layout(files[1], 1, layout).adaptive for layout in ("uniform", "bucketed")]
    assert pair[0] == pytest.approx(pair[1]), "alone, both layouts run the same forwards"


def test_padding_to_the_widest_block_eats_the_gain_of_a_crowd(files):
    assert judge_layout(files[1], 8, "uniform").prefers_fixed


def test_the_fixed_rate_is_the_best_of_the_menu(files):
    guidance = files[1]
    best = judge_layout(guidance, 8, "uniform")
    for block in guidance.value.menu.tolist():
        only = replace(guidance, value=guidance.value.restricted([block]))
        assert judge_layout(only, 8, "uniform").fixed <= best.fixed + 1e-9


def chosen(**settings):
    made = PluginSettings(model="nld-tiny", device="cpu", **settings)
    return choose_planners(made, bundled_folder(), "cpu", 8)


def test_auto_is_recguide_where_steps_are_ragged_and_a_policy_is_there(files):
    found = chosen(policy=str(files[0]))
    assert next(iter(found.planners)) == "recguide"


def test_auto_takes_fixed_blocks_under_padding_and_gives_the_rates(files):
    found = chosen(policy=str(files[0]), layout="uniform")
    name, planner = next(iter(found.planners.items()))
    assert name == "linear"
    assert planner.block_size == judge_layout(files[1], 8, "uniform").block
    assert any("tokens/ms" in note for note in found.notes)


def test_auto_without_tables_falls_back_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recguide_core.tuning.guidance.shipped_folder", lambda: Path(tmp_path))
    found = chosen()
    assert next(iter(found.planners)) == "overlap" and "recguide tune" in found.notes[0]
    found = chosen(layout="bucketed")
    assert next(iter(found.planners)) == "linear:recipe"
    assert "bucketed" in found.notes[0]
