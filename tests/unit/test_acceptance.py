"""The acceptance model: closed forms against counting, fits that hold, files that refuse edits."""

import json

import numpy as np
import pytest

from recguide_core.acceptance import figures, load_model, save_model, tau_bounds
from recguide_core.acceptance.fit import worse_tau
from recguide_core.acceptance.published import PUBLISHED, TABLE1
from recguide_core.acceptance.runs import RunLaw, rounds_of, stationary
from recguide_core.acceptance.signals import auroc
from recguide_core.errors import DataError
from recguide_core.tables import shipped_path


@pytest.fixture(scope="module")
def models():
    return {n: load_model(shipped_path(n, "acceptance"))[0] for n in PUBLISHED}


@pytest.fixture(scope="module")
def law():
    return RunLaw.like_table1(-0.06, 0.025)


def walk(left, block):
    """Accepted lengths of fixed-block rounds over texts, and R left at their starts."""
    accepted, states = [], []
    for row in left:
        at = 0
        while at < len(row):
            states.append(row[at])
            accepted.append(min(row[at], block))
            at += accepted[-1]
    return np.array(accepted), np.array(states)


def test_rounds_of_b32_show_table_1(law):
    table = TABLE1 / TABLE1.sum(1, keepdims=True)
    assert law.transitions() == pytest.approx(table, abs=1e-6)
    assert (law.chain >= 0).all() and law.chain.sum(1) == pytest.approx(1)


def test_sampled_rounds_agree_with_the_closed_forms(law):
    left = law.sample(np.random.default_rng(3), 300, 1500)
    for block in (8, 16, 32):
        accepted, states = walk(left, block)
        assert accepted.mean() == pytest.approx(law.tau(block), rel=0.03)
        assert np.minimum(states, 32).mean() == pytest.approx(law.accepted(block, 32), rel=0.03)
        assert (states > 16).mean() == pytest.approx(law.reach(block, 17), abs=0.02)
    accepted, _ = walk(left, 32)
    kinds = np.digitize(accepted, (9, 17))
    counts = np.zeros((3, 3))
    np.add.at(counts, (kinds[:-1], kinds[1:]), 1)
    assert counts / counts.sum(1, keepdims=True) == pytest.approx(TABLE1, abs=0.03)


def test_sampled_positions_count_down_to_the_next_spot(law):
    left = law.sample(np.random.default_rng(0), 20, 400)
    assert left.min() >= 1
    step = left[:, 1:] - left[:, :-1]
    assert ((step == -1) | (left[:, :-1] == 1)).all()


def test_rounds_of_runs():
    assert rounds_of([1, 8, 9, 32, 33], 8).tolist() == [1, 1, 2, 4, 5]
    assert stationary(np.array([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx([2 / 3, 1 / 3])


def test_worse_drafts_shorten_rounds(law):
    assert worse_tau(law, 0.0) == pytest.approx(law.tau(16))
    assert law.tau(16) > worse_tau(law, 0.05) > worse_tau(law, 0.3) > 1.0


def test_fitted_figures_hold_and_predictions_come_near(models):
    for model in models.values():
        found = {f.name: f for f in figures(model)}
        assert found["tau(16)"].deviation == pytest.approx(0, abs=1e-3)
        assert found["tau, TiDAR"].deviation == pytest.approx(0, abs=1e-3)
        assert found["AUROC of s, 32 over 16"].deviation == pytest.approx(0, abs=5e-3)
        assert not found["mean A_32"].fitted
        assert abs(found["mean A_32"].deviation) < 0.06
        assert abs(found["mean A_8"].deviation) < 0.03
        assert abs(found["P(full), B = 16"].deviation) < 0.06
        assert max(model.overall.tau(32), 0) < min(tau_bounds(model)) < 14.8


def test_serving_table_of_14b_is_predicted(models):
    law = models["nld-14b"].overall
    assert law.tau(8) == pytest.approx(6.67, rel=0.03)
    assert law.tau(32) == pytest.approx(12.96, rel=0.03)


def test_table_3_follows_from_the_category_laws(models):
    for name, model in models.items():
        for law in model.categories:
            wrong = law.runs.mismatch_at(16)
            p = law.risky_passed
            seen = sum(
                wrong[q] * ((1 - p) ** (q - 1) + (q - 1) * p * (1 - p) ** max(q - 2, 0))
                for q in range(1, 16)
            )
            target = PUBLISHED[name].correction[law.name]
            assert law.risky_wrong * seen == pytest.approx(target[0], rel=1e-6)
            assert law.risky_wrong * seen * law.fixed == pytest.approx(target[1], rel=1e-6)


def test_impossible_tables_are_refused():
    with pytest.raises(ValueError, match="no chain of runs"):
        RunLaw.like_table1(0.0, 0.005)


def test_auroc_by_hand():
    label = np.array([True, False, True, False])
    assert auroc([3.0, 1.0, 2.0, 2.0], label) == pytest.approx(3.5 / 4)
    assert np.isnan(auroc([1.0], np.array([True])))


def test_file_round_trip_and_edits(models, tmp_path):
    path = tmp_path / "m.json"
    digest = save_model(path, models["nld-8b"], {"source": "test"})
    again, provenance, found = load_model(path)
    assert found == digest and provenance == {"source": "test"}
    assert again.overall.tau(16) == models["nld-8b"].overall.tau(16)
    assert again.categories[1].fixed == models["nld-8b"].categories[1].fixed
    raw = json.loads(path.read_text())
    raw["model"]["noise"] = 0.0
    path.write_text(json.dumps(raw))
    with pytest.raises(DataError, match="was changed"):
        load_model(path)
