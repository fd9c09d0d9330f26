"""The corpus: the same for a seed, true in every stated result, test and training apart."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide_core.errors import UsageError
from recguide_core.tiny import checks
from recguide_core.tiny.card import demo
from recguide_core.tiny.corpus import DOMAINS, documents, held_out

SEEDS = st.integers(0, 10_000)


@pytest.mark.parametrize("domain", [*DOMAINS, "drill"])
def test_a_seed_gives_the_same_documents(domain: str) -> None:
    first = list(islice(documents(domain, 4, test=False), 30))
    again = list(islice(documents(domain, 4, test=False), 30))
    other = list(islice(documents(domain, 5, test=False), 30))
    assert first == again
    assert first != other


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_every_calculator_mark_is_right(seed: int) -> None:
    for domain in ("math", "drill"):
        for document in islice(documents(domain, seed, test=False), 20):
            score = checks.marks(document.answer)
            assert score.right == score.total, document.answer


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_the_final_line_repeats_the_last_result(seed: int) -> None:
    for document in islice(documents("math", seed, test=False), 20):
        last = document.answer.rsplit("#### ", 1)[1]
        assert f"={last}>>" in document.answer


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_code_parses_and_its_stated_results_hold(seed: int) -> None:
    for document in islice(documents("code", seed, test=False), 20):
        assert checks.code(document.answer).right == 1, document.answer


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_lists_hold_what_the_question_names(seed: int) -> None:
    for document in islice(documents("lists", seed, test=False), 20):
        named = document.prompt.removesuffix(" Add a note.").rstrip(".").split(": ")[-1]
        if document.form in ("plain", "reverse", "markup"):
            assert all(item in document.answer for item in named.split(", "))
        if document.form == "as_json":
            records = json.loads(document.answer.split("```")[1].removeprefix("json\n"))
            spoken = "; ".join(
                ", ".join([r["name"], *(f"{k} {v}" for k, v in r.items() if k != "name")])
                for r in records
            )
            assert spoken == named


@given(SEEDS, SEEDS)
@settings(max_examples=10, deadline=None)
def test_held_out_prompts_never_occur_in_training(seed: int, other: int) -> None:
    for domain in DOMAINS:
        test = {d.prompt for d in islice(documents(domain, seed, test=True), 10)}
        training = {d.prompt for d in islice(documents(domain, other, test=False), 50)}
        assert not test & training
        assert all(held_out(prompt) for prompt in test)


def test_demo_prompts_are_held_out_and_cover_the_domains() -> None:
    prompts = demo()
    assert len(prompts) == 60
    assert {d.domain for d in prompts} == set(DOMAINS)
    assert all(held_out(d.prompt) for d in prompts)


def test_an_unknown_domain_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="lists"):
        next(documents("list", 0, test=False))


def test_wrong_texts_are_found() -> None:
    assert checks.marks("2+2 = <<2+2=5>>5, <<3*4=12>>12") == checks.Score(1, 2)
    assert checks.lines("1. a\n2. c", "1. a\n2. b") == checks.Score(1, 2)
    body = "```python\ndef f(a):\n    return a + 1\n```\n>>> f(1)\n"
    assert checks.code(body + "2").right == 1
    assert checks.code(body + "3").right == 0
    endless = "```python\ndef f(a):\n    while True:\n        a += 1\n```\n>>> f(1)\n2"
    assert checks.code(endless).right == 0
    assert checks.code("```python\nimport os\n```").right == 0
