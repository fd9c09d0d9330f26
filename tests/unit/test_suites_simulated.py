"""Suites from the simulator: cells, tables and the capacity search on small runs."""

import re

import pytest

from recguide_core.bench.suites.paper import paper_suite
from recguide_core.bench.suites.paper_cells import fitted_host
from recguide_core.bench.suites.plan import Target, capacity, plan_suite
from recguide_core.bench.suites.published import TAU, by_category, table4
from recguide_core.bench.suites.report import Cell, Row, SuiteTable
from recguide_core.errors import UsageError
from recguide_core.simulator import SimSettings
from recguide_core.simulator.run import row_of, simulate_cell
from recguide_core.simulator.settings import SimCell


def test_cells_and_tables_show_deviations():
    cells = [Cell(11.0, 10.0), Cell(5.0, 10.0, fitted=True), Cell(3.0), Cell(None, 2.0)]
    table = SuiteTable("T", ["a", "b", "c", "d"], [Row("r", cells)], ".1f", "why")
    assert table.deviations() == [pytest.approx(0.1)]
    assert table.worst() == table.median() == pytest.approx(0.1)
    line = "| r | 11.0 / 10.0 (+10%) | 5.0 / 10.0 (fitted -50%) | 3.0 | - |"
    assert line in table.markdown() and "why" in table.markdown()
    assert table.as_record()["rows"][0]["cells"][0]["deviation"] == pytest.approx(0.1)


def test_published_means_are_the_papers_own():
    assert by_category((1, 1, 1, 2, 2, 2, 3, 3)) == (1, 2, 3, pytest.approx(15 / 8))
    paper = {"nld-8b": (9.93, 4.40, 13.38, 14.02), "nld-14b": (10.10, 4.58, 14.94, 14.21)}
    for model, overall in paper.items():
        for method, value in zip(("linear", "dflash", "tidar", "overlap"), overall, strict=True):
            assert TAU[model][method][3] == pytest.approx(value, abs=0.01)
    for model in paper:
        for load in (2, 8, 32, 128):
            for category in range(4):
                shares = [table4(model, load, category, place) for place in range(3)]
                assert sum(shares) == pytest.approx(100, abs=0.03)


@pytest.mark.parametrize(("model", "per_step"), [("nld-8b", 3.2), ("nld-14b", 3.6)])
def test_host_of_the_papers_engine(model, per_step):
    host = fitted_host(model)
    assert host.step + host.request == pytest.approx(per_step, abs=0.15)
    assert 0 < host.request < 0.4


@pytest.fixture(scope="module")
def paper():
    return paper_suite(("nld-8b",), tokens=40, requests=6, workers=1, loads=(2,))


def test_paper_suite_has_every_table_with_a_paragraph(paper):
    titles = " ".join(table.title for table in paper.tables)
    figures = ("Figure 2(a)", "Figure 2(b)", "Figure 5")
    for name in (*figures, *(f"Table {n}" for n in range(2, 7)), "Acceptance", "Beyond"):
        assert name in titles
    for table in paper.tables:
        assert len(table.text) > 80, table.title
        assert all(len(row.cells) == len(table.columns) for row in table.rows), table.title
    assert "nan" not in paper.markdown()
    record = paper.as_record()
    assert record["schema"] == "recguide.suite/1"
    assert record["run"]["nld-8b"]["host_step_ms"] == pytest.approx(fitted_host("nld-8b").step)


def test_table_2_names_what_is_fitted(paper):
    table = next(t for t in paper.tables if t.title.startswith("Table 2"))
    fitted = {row.label: [cell.fitted for cell in row.cells] for row in table.rows}
    assert not any(fitted["RecGuide"]) and all(fitted["TiDAR"][:4])
    assert re.search(r"fitted", table.markdown())


def test_capacity_meets_the_target_and_the_next_load_does_not():
    settings = SimSettings(max_tokens=32, workers=1)
    target = Target(tps=450)
    found = capacity(settings, "linear", 16, target)
    assert found.load and found.load > 1 and target.met(found.row)
    above = found.load + max(1, found.load // 20)
    beyond = simulate_cell(settings, SimCell("linear", 16, above), count=max(48, 3 * above))
    assert not target.met(row_of(beyond, settings))
    tight = capacity(settings, "linear", 16, Target(tps=600))
    assert tight.load is None or tight.load <= found.load


def test_impossible_and_missing_targets():
    settings = SimSettings(max_tokens=32, workers=1)
    assert capacity(settings, "ar", None, Target(tpot_ms=0.1)).load is None
    with pytest.raises(UsageError, match="needs a target"):
        Target()
    with pytest.raises(UsageError, match="target tps is -1"):
        Target(tps=-1)
    with pytest.raises(UsageError, match="No GPU 'b300'"):
        plan_suite(settings, Target(tps=1e6), gpus=("b300",))
