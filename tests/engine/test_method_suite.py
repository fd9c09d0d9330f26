"""The method suite on the bundled model: identities that its tables must keep."""

from __future__ import annotations

import numpy as np
import pytest
from harness import toy_guidance

from recguide_core.bench.load import Job
from recguide_core.bench.suites.method import MethodSuite, interval, with_gain
from recguide_core.bench.suites.method_report import method_report
from recguide_core.datasets import Prompt
from recguide_core.simulator.prices import named_clock

TEXTS = (("math", "Add 3 and 9."), ("code", "Write a function that doubles a number."))


@pytest.fixture(scope="module")
def record(tiny):
    jobs = []
    for category, text in TEXTS:
        prompt = Prompt(category, (("user", text),), category, category=category)
        ids = tiny.tokenizer.encode(tiny.render([{"role": "user", "content": text}]))
        jobs.append(Job(prompt, np.array(ids), 40))
    return MethodSuite(
        model=tiny,
        jobs=jobs,
        guidance=toy_guidance(),
        clock=lambda padded: named_clock("b200/nld-8b", padded=padded),
        progress=lambda label: None,
        loads=(2,),
        drafter=False,
    ).run()


def test_every_method_keeps_the_text_and_tau_is_at_least_one_token_a_round(record):
    assert {row["method"] for row in record["table2"]} == {"linear", "tidar", "overlap"}
    for row in record["table2"]:
        assert row["lossless"]
        assert all(tau >= 1.0 for tau in row["tau"].values())


def test_a_merged_engine_without_branches_is_linear(record):
    rows = {row["method"]: row for row in record["table5"]}
    assert rows["merged forward, no branch"]["tps"] == rows["LinearSS"]["tps"]
    assert rows["LinearSS"]["gain"] == 0.0
    overlap = next(r for r in record["table2"] if r["method"] == "overlap")
    linear = next(r for r in record["table2"] if r["method"] == "linear")
    assert overlap["tau"]["mean"] >= linear["tau"]["mean"]


def test_outcomes_and_shares_add_up(record):
    for group in record["table3"].values():
        parts = ("correction_coverage", "continuation_coverage", "no_hit")
        assert sum(group[p] for p in parts) == pytest.approx(100)
        assert sum(group["states"].values()) == group["rounds"]
    for row in record["table4"]:
        assert sum(row["share"]["overall"]) == pytest.approx(100)


def test_padding_never_pays(record):
    speed = {row["method"]: row["tps"] for row in record["table6"]}
    assert speed["ragged instead"] >= speed["+ z_t, padded"]


def test_report_shows_every_table_beside_the_papers(record):
    report = method_report(record)
    titles = " ".join(table.title for table in report.tables)
    assert all(f"Table {n}" in titles for n in range(1, 7))
    assert "nan" not in report.markdown()
    linear = report.tables[1].rows[0].cells[-1]
    assert linear.published == pytest.approx(9.93, abs=0.01)


def test_intervals_of_table_one():
    assert [interval(a) for a in (1, 8, 9, 16, 17, 32)] == [0, 0, 1, 1, 2, 2]


def test_gain_is_over_the_first_row():
    rows = with_gain([{"tps": 50.0}, {"tps": 75.0}])
    assert [row["gain"] for row in rows] == pytest.approx([0.0, 50.0])
