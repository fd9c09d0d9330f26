"""The report of a run: figures with marks and data, a page without outside parts."""

import csv
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recguide_core.bench.config import Cell
from recguide_core.bench.observe import BINS
from recguide_core.bench.report import png, write_report
from recguide_core.bench.report.chart import Axes, BarChart, LineChart, Series
from recguide_core.bench.report.figures import all_figures
from recguide_core.bench.report.svg import draw, log_ticks, nice_ticks, short
from recguide_core.bench.rows import RequestRow, cell_row
from recguide_core.records import Source

SVG = "{http://www.w3.org/2000/svg}"
CELLS = (Cell("ar", None, 1), Cell("linear", 8, 1), Cell("overlap", 8, 1), Cell("overlap", 8, 4))


def requests_of(cell: Cell) -> list[RequestRow]:
    blocks, accepted = ([1] * 4, [1] * 4) if cell.method == "ar" else ([8] * 4, [8, 3, 1, 5])
    sources = [Source.NONE] * 4 if cell.method == "ar" else [1, 1, 2, 3]
    return [
        RequestRow(
            cell.key,
            index,
            f"p/{index}",
            f"h{index}",
            "demo",
            "math",
            4,
            40,
            0.1 * index,
            first_s=0.2 + 0.1 * index,
            end_s=1.0 + 0.3 * index,
            chunk_s=[0.2 + 0.1 * index, 1.0 + 0.3 * index],
            chunk_tokens=[1, sum(accepted)],
            finish="stop",
            rounds=4,
            forwards=8,
            round_tokens=sum(accepted),
            round_block=blocks,
            round_accepted=accepted,
            round_source=[int(s) for s in sources],
            tokens=[1] * (1 + sum(accepted)),
            lossless="exact",
        )
        for index in range(3)
    ]


def cells_and_requests():
    rows, requests = [], []
    drafts = {fate: [1] * BINS for fate in ("passed", "rejected")}
    for cell in CELLS:
        mine = requests_of(cell)
        requests += mine
        more = {"steps": 9, "step_ms": 4.0, "plan_ms": 0.1, "query_tokens_per_forward": 8.0}
        row = cell_row(cell, mine, clock="wall", host_share=0.1)
        rows.append({**row, **more, "drafts": {"margin": drafts, "confidence": drafts}})
    return rows, requests


ABOUT = {
    "settings": {"model": "nld-tiny", "data": ["demo"], "seed": 0},
    "origins": {"seed": "flag"},
    "versions": {"recguide": "0", "cpu": "a <cpu>", "torch": None},
    "date": "2026-01-01",
    "data": {"sources": {"demo": "here"}},
    "model_hash": "m",
    "prompts_hash": "p",
    "template_hash": "t",
}


@pytest.fixture(scope="module")
def figures():
    return {figure.name: figure for figure in all_figures(*cells_and_requests())}


def marks(svg: str) -> int:
    root = ET.fromstring(svg)
    return sum(len(root.findall(f".//{SVG}{tag}")) for tag in ("polyline", "circle", "rect"))


def test_a_full_run_has_every_figure(figures):
    assert list(figures) == [
        "pareto",
        "survival",
        "acceptance",
        "step-time",
        "margin",
        "confidence",
        "blocks",
        "draft-sources",
        "breakdown",
        "ttft",
    ]


def test_every_figure_is_valid_svg_with_marks_and_data(figures):
    for figure in figures.values():
        assert marks(figure.svg) > len(set(figure.header)) - 1, figure.name
        assert figure.rows, figure.name
        for row in figure.rows:
            assert len(row) == len(figure.header), figure.name
        assert "nan" not in figure.svg.lower(), figure.name


def test_survival_is_the_share_of_rounds(figures):
    mine = [row for row in figures["survival"].rows if row[0] == "linear B=8"]
    assert [(k, share) for _, k, share, _ in mine] == [
        (1, 1.0),
        (2, 0.75),
        (3, 0.75),
        (4, 0.5),
        (5, 0.5),
        (6, 0.25),
        (7, 0.25),
        (8, 0.25),
    ]
    # The area under the line is the mean accepted length.
    assert sum(share for _, _, share, _ in mine) == pytest.approx((8 + 3 + 1 + 5) / 4)


def test_shares_add_up_to_one(figures):
    for name in ("blocks", "draft-sources"):
        for row in figures[name].rows:
            assert sum(row[2:]) == pytest.approx(1.0)


def test_breakdown_adds_up_to_the_step(figures):
    for row in figures["breakdown"].rows:
        assert sum(row[1:]) == pytest.approx(4.0)


def test_breakdown_shows_the_physical_floor_where_it_is_known():
    rows, requests = cells_and_requests()
    rows[0]["floor"] = {"ms": 1.5, "achieved": 0.375}
    # Peaks are measured too, so a floor can come out above the forward; it is drawn within it.
    rows[1]["floor"] = {"ms": 9.0, "achieved": 2.25}
    found = {figure.name: figure for figure in all_figures(rows, requests)}["breakdown"]
    assert found.header[1:3] == ("physical floor", "rest of the forward")
    assert [row[1] for row in found.rows] == pytest.approx([1.5, 3.6, 0.0, 0.0])
    assert [sum(row[1:]) for row in found.rows] == pytest.approx([4.0] * len(CELLS))
    assert "physical floor" in found.svg


def test_turns_of_conversations_are_a_figure():
    rows, requests = cells_and_requests()
    names = ("prompt_tokens", "output_tokens", "ttft_ms", "accepted_length")
    rows[1]["turns"] = [
        {"turn": turn, "requests": 3 - turn, **dict.fromkeys(names, 10.0 + turn)} for turn in (0, 1)
    ]
    found = {figure.name: figure for figure in all_figures(rows, requests)}["turns"]
    assert found.rows[1] == ("linear/8@1", 2, 2, 11.0, 11.0, 11.0, 11.0)
    assert marks(found.svg) == 1 + 2 + 1


def test_a_server_that_answers_with_nothing_does_not_break_the_report():
    rows, requests = cells_and_requests()
    names = ("prompt_tokens", "output_tokens", "ttft_ms", "accepted_length")
    for row in rows:
        row["ttft_ms"] = None
        row["turns"] = [{"turn": 0, "requests": 1, **dict.fromkeys(names)}]
    assert not {"ttft", "turns"} & {figure.name for figure in all_figures(rows, requests)}


def test_loads_that_are_no_number_in_flight_have_their_own_axis():
    rows, requests = cells_and_requests()
    for row, speed in zip(rows[-2:], (4.0, 0.5), strict=True):
        row["speed"], row["concurrency"] = speed, 8
    found = {figure.name: figure for figure in all_figures(rows[-2:], requests)}["step-time"]
    assert [row[1] for row in found.rows] == ["8, trace x0.5", "8, trace x4"]
    assert found.chart.axes.x == "speed of the trace"
    assert found.chart.series[0].x == [0.5, 4.0]


def test_every_figure_is_drawn_as_png_too(figures, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    rows, requests = cells_and_requests()
    write_report(tmp_path, ABOUT, rows, requests)
    for name, figure in figures.items():
        drawn = (tmp_path / "figures" / f"{name}.png").read_bytes()
        assert drawn.startswith(b"\x89PNG\r\n\x1a\n"), name
        assert drawn == png.draw(figure.chart), name
        width, height = (int.from_bytes(drawn[i : i + 4]) for i in (16, 20))
        assert (width, height) == (1280, 760), name


def test_a_png_shows_the_data():
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plots)")
    charts = [
        LineChart("t", [Series("a", [1, 2], [0.0, y])], Axes("x", "y", top=9)) for y in (1, 2)
    ]
    bars = [BarChart("t", ["g"], [("a", [v]), ("b", [1.0])], "y") for v in (1.0, 2.0)]
    assert len({png.draw(chart) for chart in [*charts, *bars]}) == 4


def test_without_matplotlib_the_report_is_complete_but_for_the_pngs(tmp_path, monkeypatch):
    monkeypatch.setattr(png, "available", lambda: False)
    write_report(tmp_path, ABOUT, *cells_and_requests())
    kinds = {path.suffix for path in (tmp_path / "figures").iterdir()}
    assert kinds == {".svg", ".csv"}


def test_a_run_in_which_nothing_finished_has_no_figures():
    rows, requests = cells_and_requests()
    for request in requests:
        request.finish = "error"
    failed = [cell_row(cell, requests, clock="wall") for cell in CELLS]
    assert len(rows) == len(failed)
    assert all_figures(failed, requests) == []


def test_the_page_is_self_contained_and_escapes(tmp_path):
    rows, requests = cells_and_requests()
    rows[1]["differences"] = [
        {
            "key": "linear/8@1#0",
            "prompt_id": "<b>",
            "verdict": "different",
            "position": 3,
            "expected": 5,
            "got": 6,
            "gap": None,
        }
    ]
    target = write_report(tmp_path, ABOUT, rows, requests)
    text = target.read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "a &lt;cpu&gt;" in text
    assert "Where texts part" in text
    outside = re.findall(r'(?:src|href)="(?!figures/|data:,|#)([^"]*)"', text)
    assert outside == []
    assert "<script" not in text
    for link in re.findall(r'href="(figures/[^"]*)"', text):
        data = list(csv.reader((tmp_path / link).open(encoding="utf-8")))
        assert len(data) > 1
        assert (tmp_path / link).with_suffix(".svg").is_file()


def test_lines_and_bars_place_values_where_the_axis_says():
    chart = draw(LineChart("t", [Series("a", [0.0, 10.0], [0.0, 100.0])], Axes("x", "y")))
    circles = ET.fromstring(chart).findall(f"{SVG}circle")
    low, high = ([float(c.get(k)) for k in ("cx", "cy")] for c in circles)
    assert low[0] < high[0]
    assert low[1] > high[1]
    bars = ET.fromstring(draw(BarChart("t", ["g"], [("a", [1.0]), ("b", [3.0])], "y")))
    first, second = bars.findall(f"{SVG}rect")[:2]
    assert float(second.get("height")) == pytest.approx(3 * float(first.get("height")), rel=0.02)
    assert float(second.get("y")) + float(second.get("height")) == pytest.approx(
        float(first.get("y")), abs=0.2
    )


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
@example(0.0, 5e-324)
@example(1e6, 999999.9999999999)
@example(-5e-324, -5e-324)
@example(3.0, 3.0)
def test_ticks_cover_the_values(a, b):
    ticks = nice_ticks(min(a, b), max(a, b))
    assert 2 <= len(ticks) <= 12
    slack = 1e-6 * max(abs(a), abs(b), 1.0)
    assert ticks[0] <= min(a, b) + slack
    assert ticks[-1] >= max(a, b) - slack


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_log_ticks_cover_the_loads(a, b):
    ticks = log_ticks(min(a, b), max(a, b))
    assert len(ticks) >= 2
    assert ticks[0] <= min(a, b)
    assert ticks[-1] >= max(a, b)


def test_short_numbers():
    assert [short(v) for v in (0, 0.25, 12.3456, 12345.6)] == ["0", "0.25", "12.3", "12,346"]
