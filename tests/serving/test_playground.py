"""The stream behind the page: every token with its origin, every round with its branches."""

import json

import httpx
import pytest

from recguide_core.records import Origin, Source
from recguide_core.serving.playground import FILES, PAGE, kind_of

MODEL = "nld-tiny"


def events(live, question, **changes):
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 60,
        **changes,
    }
    with httpx.stream("POST", f"{live.url}/playground/stream", json=body, timeout=60) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.mark.parametrize("method", ["ar", "linear", "overlap", "tidar"])
def test_rounds_add_up_to_the_answer(live, question, method):
    start, *rounds, end = events(live, question, speculation={"method": method})
    assert (start["type"], start["method"], end["type"]) == ("start", method, "end")
    tokens = [token for entry in rounds for token in entry["tokens"]]
    assert [token["id"] for token in tokens] == end["tokens"]
    text = live.chat(max_tokens=60).json()["choices"][0]["message"]["content"]
    assert "".join(token["text"] for token in tokens) == text
    spec = end["usage"]["speculation"]
    decoded = [entry for entry in rounds if entry["block"]]
    assert len(decoded) == spec["rounds"]
    for entry in decoded[:-1]:
        assert len(entry["tokens"]) == entry["accepted"] <= entry["block"]


def test_origins_follow_from_drafts_and_branches(live, question):
    _, first, *rounds, end = events(live, question, speculation={"method": "overlap"})
    assert [token["kind"] for token in first["tokens"]] == ["prefill"]
    before, reused = None, 0
    for entry in rounds[:-1]:
        *drafted, last = entry["tokens"]
        full = entry["accepted"] == entry["block"]
        assert last["kind"] == ("bonus" if full else "correction")
        hit = before is not None and before["hit"] >= 0
        kind = f"reused-{before['branches'][before['hit']]['kind']}" if hit else "draft"
        assert {token["kind"] for token in drafted} <= {kind}
        assert all(0 <= token["margin"] <= 1 for token in drafted)
        reused += hit
        before = entry
    assert reused > 0, "the example must reuse a branch"
    assert reused <= end["usage"]["speculation"]["branch_hits"]


def test_several_answers_are_refused(live, question):
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "n": 2}
    assert live.post("/playground/stream", body).status_code == 400


@pytest.mark.parametrize(
    ("origin", "source", "kind"),
    [
        (Origin.DRAFT, Source.DRAFT, "draft"),
        (Origin.DRAFT, Source.FIRST, "draft"),
        (Origin.DRAFT, Source.CORRECTION, "reused-correction"),
        (Origin.DRAFT, Source.CONTINUATION, "reused-continuation"),
        (Origin.DRAFT, Source.POSITION, "reused-position"),
        (Origin.CORRECTION, Source.CONTINUATION, "correction"),
        (Origin.BONUS, Source.DRAFT, "bonus"),
        (Origin.AR, Source.NONE, "ar"),
        (Origin.PREFILL, Source.NONE, "prefill"),
    ],
)
def test_the_colour_of_a_token(origin, source, kind):
    assert kind_of(origin, source) == kind


def test_every_file_of_the_page_is_served_with_its_type(live):
    assert sorted(FILES) == sorted(path.name for path in PAGE.iterdir())
    for name, kind in FILES.items():
        answer = httpx.get(f"{live.url}/page/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
