"""Fill `card_template.md` with figures. `{{name}}` in the template is replaced, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recguide_core.errors import DataError
from recguide_core.tiny.figures import PAPER_TRANSITIONS

_HERE = Path(__file__).parent
_LABELS = {
    "gsm8k": "GSM8K test",
    "math": "math",
    "code": "code",
    "lists": "lists",
    "instructions": "instructions",
    "demo": "demo prompts",
    "mixed": "mixed (the first five)",
}
_OWN = ("math", "code", "lists", "instructions")


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, first column left, the others right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _drafting(results: dict[str, Any]) -> str:
    rows = []
    for name, s in {**results["sets"], "mixed": results["mixed"]}.items():
        taus = [f"{s['tau'][B]:.2f}" for B in ("8", "16", "32")]
        full = [_percent(s["full"][B]) for B in ("8", "16", "32")]
        rows.append([_LABELS[name], *taus, *full, *(_percent(x) for x in s["shares_32"])])
    header = ["prompts", "τ B=8", "B=16", "B=32", "full B=8", "B=16", "B=32"]
    return _table([*header, "A ≤ 8", "9..16", "> 16 (B=32)"], rows)


def _confidence(results: dict[str, Any]) -> str:
    rows = []
    for name, s in {**results["sets"], "mixed": results["mixed"]}.items():
        c, r = s["confidence_16"], s["ranks_16"]
        keys = ("passed", "rejected", "passed_margin", "rejected_margin")
        middle = [f"{c[k]:.3f}" for k in keys]
        risky = [_percent(c["risky_passed"]), _percent(c["risky_rejected"])]
        rank = [_percent(r[k]) for k in ("second", "third", "fifth")]
        rows.append([_LABELS[name], *middle, *risky, f"{c['auroc']:.3f}", *rank])
    header = ["prompts", "conf. passed", "rejected", "margin passed", "rejected"]
    header += ["margin < 0.5 passed", "rejected", "AUROC", "rank 2", "≤ 3", "≤ 5"]
    return _table(header, rows)


def _transitions(results: dict[str, Any]) -> str:
    rows = []
    names = ("A ≤ 8", "9..16", "> 16")
    mixed = results["mixed"]
    for i, name in enumerate(names):
        here = " / ".join(f"{x:.3f}" for x in mixed["transitions_32"][i])
        paper = " / ".join(f"{x:.3f}" for x in PAPER_TRANSITIONS[i])
        rows.append([name, here, str(mixed["transition_rows"][i]), paper])
    return _table(["from", "to ≤ 8 / 9..16 / > 16", "rounds", "paper, NLD-8B"], rows)


def _text(results: dict[str, Any]) -> str:
    rows = []
    for name, s in results["sets"].items():
        data = f"{s['distinct_data']:.3f}" if "distinct_data" in s else "–"
        row = [_LABELS[name], str(s["prompts"]), f"{s['tokens']:.0f}", _percent(s["ended"])]
        rows.append([*row, f"{s['distinct']:.3f}", data, _percent(s["right"]), str(s["checked"])])
    header = ["prompts", "number", "tokens an answer", "ended", "distinct 4-grams", "in the data"]
    return _table([*header, "right", "of"], rows)


def _bars(results: dict[str, Any]) -> str:
    sets, mixed = results["sets"], results["mixed"]
    c = mixed["confidence_16"]
    drift = max(abs(s["distinct"] / s["distinct_data"] - 1) for n, s in sets.items() if n != "demo")
    diagonal = mixed["transitions_32"]
    drafter = results["drafter"] or {"drop": 0.0}
    checks: list[tuple[str, float, float, bool]] = [
        ("GSM8K test, τ(16)", sets["gsm8k"]["tau"]["16"], 4.5, True),
        *((f"{n}, τ(16)", sets[n]["tau"]["16"], 6.0, True) for n in _OWN),
        ("demo, τ(16)", sets["demo"]["tau"]["16"], 5.0, True),
        ("mixed, share of A > 16 at B = 32", mixed["shares_32"][2], 0.15, True),
        ("mixed, full blocks at B = 16", mixed["full"]["16"], 0.20, True),
        ("mixed, A32 / A16", mixed["tau"]["32"] / mixed["tau"]["16"], 1.15, True),
        ("mixed, confidence gap at B = 16", c["passed"] - c["rejected"], 0.2, True),
        ("mixed, AUROC of the margin", c["auroc"], 0.8, True),
        ("short after short, B = 32", diagonal[0][0], 0.5, True),
        ("long after long, B = 32", diagonal[2][2], 0.5, True),
        ("largest drift of distinct 4-grams", drift, 0.2, False),
        ("math, calculator marks right", sets["math"]["right"], 0.8, True),
        ("lists, lines right", sets["lists"]["right"], 0.8, True),
        ("code, parses and results hold", sets["code"]["right"], 0.8, True),
        ("drafter, loss of τ with zeroed states", drafter["drop"], 0.2, True),
    ]
    rows = []
    for name, value, bar, least in checks:
        met = value >= bar if least else value <= bar
        sign = "≥" if least else "≤"
        rows.append([name, f"{value:.3f}", f"{sign} {bar}", "reached" if met else "**missed**"])
    return _table(["bar", "measured", "wanted", ""], rows)


def _samples(results: dict[str, Any]) -> str:
    parts = []
    for name, s in results["sets"].items():
        for prompt, answer in s["samples"]:
            parts.append(f"**{_LABELS[name]}**: {prompt}\n\n````text\n{answer}\n````")
    return "\n\n".join(parts)


def _numbers(values: dict[str, float | None], digits: int) -> str:
    return " / ".join("–" if v is None else f"{v:.{digits}f}" for v in values.values()) or "–"


def _curve() -> str:
    """Return losses and trial figures of `training_log.jsonl` as a table."""
    lines = (_HERE / "training_log.jsonl").read_text().splitlines()
    rows = []
    for entry in (json.loads(line) for line in lines):
        row = [entry["stage"], f"{entry['tokens'] / 1e6:.2f}"]
        row += [f"{entry[k]:.3f}" if k in entry else "–" for k in ("ar_loss", "draft_loss")]
        row += [_numbers(entry.get("tau_16", {}), 1), _numbers(entry.get("right", {}), 2)]
        rows.append([*row, str(entry.get("prompts", "–"))])
    header = ["stage", "clean tokens, M", "AR loss", "drafting loss"]
    header += ["τ(16) GSM8K / math / code / lists / instructions", "right: math / code / lists"]
    return _table([*header, "prompts each"], rows)


def _drafter(results: dict[str, Any]) -> str:
    if results["drafter"] is None:
        return "No drafter has been trained for these weights."
    d = results["drafter"]
    return (
        f"τ(16) {d['tau_16']:.2f} with the target's hidden states, {d['tau_16_zero_hidden']:.2f} "
        f"with zeros in their place ({_percent(d['drop'])} less), on held-out prompts of the own "
        "domains."
    )


def render(results: dict[str, Any]) -> str:
    """Return the card as Markdown.

    Raises:
        DataError: the template asks for something that is not there.
    """
    parts = {
        "sha256": results["sha256"],
        "megabytes": f"{results['bytes'] / 1e6:.1f}",
        "parameters": f"{results['parameters']:,}",
        "prompts": str(results["sets"]["math"]["prompts"]),
        "bars": _bars(results),
        "drafting": _drafting(results),
        "transitions": _transitions(results),
        "confidence": _confidence(results),
        "text": _text(results),
        "curve": _curve(),
        "drafter": _drafter(results),
        "samples": _samples(results),
    }
    page = (_HERE / "card_template.md").read_text()
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    if "{{" in page.replace("{{{", ""):
        missing = page[page.index("{{") :][:40]
        raise DataError(f"The card's template asks for {missing!r}.", "Name a part of render().")
    return page
