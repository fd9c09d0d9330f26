"""The page of a report: one HTML text without outside parts, for light, dark, desk and phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from recguide_core.bench.bits import guarantee
from recguide_core.bench.report.figure import CellRows, Figure, label_of
from recguide_core.bench.report.svg import short
from recguide_core.bench.rows import cell_of
from recguide_core.metrics import METRICS

STYLE = """
:root{--bg:#fafbfc;--card:#fff;--ink:#1f2430;--soft:#5c6473;--line:#e3e6ec;--good:#0f7a5f;
--bad:#b3261e;--warn:#8a6100;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--bg:#14171e;--card:#1b1f28;--ink:#e8eaf0;--soft:#a2a9b8;
--line:#333a48;--good:#4fd0b0;--bad:#ff8a80;--warn:#e6c04d}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.1rem;margin:36px 0 12px}
p{margin:0 0 8px}.soft{color:var(--soft)}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:10px;background:var(--card)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 12px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}th{color:var(--soft);font-weight:600}
th:first-child,td:first-child{text-align:left}
.exact,.bitwise{color:var(--good)}.different{color:var(--bad)}.near-tie{color:var(--warn)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
figure{margin:0;padding:14px;border:1px solid var(--line);border-radius:10px;background:var(--card)}
figure svg{width:100%;height:auto;display:block}
figure h3{font-size:1rem;margin:0 0 6px}figcaption{color:var(--soft);font-size:.87rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:0;padding:12px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}a{color:inherit}
@media (max-width:600px){dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
"""

COLUMNS = (
    ("tps", "tokens/s", 1),
    ("tps_steady", "steady", 1),
    ("tps_per_request", "a request", 1),
    ("tau", "tau", 2),
    ("tpf", "TPF", 2),
    ("accepted_length", "A", 2),
    ("reuse", "reuse", 2),
    ("ttft_ms", "TTFT ms", 1),
    ("tpot_ms", "TPOT ms", 2),
    ("host_share", "host", 2),
    ("achieved", "of floor", 2),
)
"""Metric, heading and digits of the columns of the results."""


def page(about: dict[str, Any], cells: CellRows, figures: Sequence[Figure]) -> str:
    """The whole page."""
    settings = about["settings"]
    data = ", ".join(str(name) for name in settings["data"])
    title = f"{settings['model']} on {data}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_subtitle(about, cells))}</p>',
        "<h2>Results</h2>",
        _results(cells),
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(_figure(figure) for figure in figures),
        "</div>",
        *_differences(cells),
        "<h2>What the numbers mean</h2>",
        _definitions([(heading, _meaning(name)) for name, heading, _ in COLUMNS]),
        "<h2>How it was made</h2>",
        _definitions(_provenance(about)),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style>'
    )
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n'
        "</main></body></html>\n"
    )


def _subtitle(about: dict[str, Any], cells: CellRows) -> str:
    clocks = sorted({str(row["clock"]) for row in cells})
    versions = about["versions"]
    requests = sum(row["requests"] for row in cells)
    return (
        f"{requests} requests, {', '.join(clocks)} clock, {versions['cpu']}, "
        f"RecGuide {versions['recguide']}, {about['date']}"
    )


def _results(cells: CellRows) -> str:
    metric_heads = [f'<th title="{escape(_meaning(n))}">{h}</th>' for n, h, _ in COLUMNS]
    plain = [f"<th>{name}</th>" for name in ("method", "C", "text")]
    head = "".join([*plain, *metric_heads, "<th>failed</th>"])
    rows = []
    for row in cells:
        verdict = guarantee(row)
        cellules = [
            escape(label_of(row)),
            escape(cell_of(row).load),
            f'<span class="{verdict}">{verdict}</span>',
            *(_value(_metric(row, name), digits) for name, _, digits in COLUMNS),
            str(row["failed"]),
        ]
        rows.append("<tr>" + "".join(f"<td>{text}</td>" for text in cellules) + "</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _metric(row: dict[str, Any], name: str) -> float | None:
    if name == "achieved":
        floor = row.get("floor")
        return None if floor is None else float(floor["achieved"])
    value: float | None = row.get(name)
    return value


def peaks_text(peaks: dict[str, Any]) -> str:
    """The device's peaks in a line."""
    return (
        f"{peaks['device']}: {_scaled(peaks['bandwidth'])}B/s, {_scaled(peaks['flops'])}FLOP/s "
        f"({peaks['source']})"
    )


def _scaled(rate: float) -> str:
    """A rate in G or T, such as `71.7 G`."""
    return f"{rate / 1e12:,.3g} T" if rate >= 1e12 else f"{rate / 1e9:,.3g} G"


def _value(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _figure(figure: Figure) -> str:
    return (
        f'<figure id="{figure.name}"><h3>{escape(figure.title)}</h3>{figure.svg}'
        f"<figcaption>{escape(figure.caption)} "
        f'<a href="figures/{figure.name}.csv">Data</a></figcaption></figure>'
    )


def _differences(cells: CellRows) -> list[str]:
    found = [d for row in cells for d in row.get("differences", ())]
    if not found:
        return []
    lines = "".join(
        f"<tr><td>{escape(str(d['key']))}</td><td>{escape(str(d['prompt_id']))}</td>"
        f'<td><span class="{d["verdict"]}">{d["verdict"]}</span></td><td>{d["position"]}</td>'
        f"<td>{d['expected']}</td><td>{d['got']}</td>"
        f"<td>{'–' if d['gap'] is None else short(d['gap'])}</td></tr>"
        for d in found
    )
    names = ("request", "prompt", "verdict", "token", "AR", "got", "below the best")
    head = "".join(f"<th>{name}</th>" for name in names)
    return [
        "<h2>Where texts part from AR's</h2>",
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>",
    ]


def _meaning(name: str) -> str:
    metric = METRICS[name]
    return f"{metric.formula} ({metric.unit})"


def _definitions(pairs: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f'<div class="wide"><dl>{lines}</dl></div>'


def _provenance(about: dict[str, Any]) -> list[tuple[str, str]]:
    origins = about["origins"]
    pairs = [
        (name, f"{_plain(value)} ({origins.get(name, 'default')})")
        for name, value in about["settings"].items()
    ]
    data = about["data"]
    pairs += [(f"data {name}", f"{data['sources'][name]}") for name in data["sources"]]
    pairs += [("peaks", peaks_text(about["peaks"]))] if about.get("peaks") else []
    pairs += [(name, str(about[name])) for name in ("model_hash", "prompts_hash", "template_hash")]
    pairs.append(("versions", _plain({k: v for k, v in about["versions"].items() if v})))
    return pairs


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return "–" if value is None else str(value)
