"""Prompts for a trace: exact lengths for engines, shared blocks, and a scale for servers."""

from pathlib import Path

import numpy as np
import pytest

from recguide_core.bench.replay import trace_jobs, trace_texts
from recguide_core.datasets import Prompt
from recguide_core.datasets.trace import HASH_BLOCK, read_trace
from recguide_core.errors import DataError

TRACE = read_trace(Path(__file__).parents[2] / "fixtures" / "traces" / "valid" / "mooncake.jsonl")
PROMPTS = [Prompt(f"p/{i}", (("user", f"Prompt {i}: " + "word " * 40),), "demo") for i in range(5)]


class Renders:
    """A token a character, within a template of two tokens before and one behind."""

    def encode(self, messages, raw):
        ids = [ord(c) for c in messages[-1]["content"]]
        return ids if raw else [9001, 9002, *ids, 9003]


def jobs(raw=False, seed=0):
    return trace_jobs(TRACE, PROMPTS, Renders(), raw=raw, seed=seed)


def test_lengths_budgets_and_moments_are_the_traces():
    found = jobs()
    assert [len(job.tokens) for job in found] == [40, 600, 580, 12]
    assert [job.max_tokens for job in found] == [6, 4, 5, 3]
    assert [job.arrival_s for job in found] == [0.0, 0.0, 0.75, 4.5]
    assert len({job.prompt.hash for job in found}) == 4


def test_the_template_is_part_of_the_length():
    for job in jobs():
        assert job.tokens[:2].tolist() == [9001, 9002]
        assert job.tokens[-1] == 9003
        assert (job.tokens[2:-1] < 9000).all()
    assert all((job.tokens < 9000).all() for job in jobs(raw=True))


def test_requests_share_exactly_the_blocks_that_they_share():
    _, left, right, _ = (job.tokens for job in jobs(raw=True))
    assert (left[:HASH_BLOCK] == right[:HASH_BLOCK]).all()
    assert (left[HASH_BLOCK:580] != right[HASH_BLOCK:]).any()


def test_prompts_belong_to_a_seed():
    assert all((a.tokens == b.tokens).all() for a, b in zip(jobs(), jobs(), strict=True))
    assert any((a.tokens != b.tokens).any() for a, b in zip(jobs(), jobs(seed=1), strict=True))


def test_a_server_gets_text_of_the_asked_length_by_its_own_count():
    asked = []

    def count(text):
        asked.append(text)
        return 7 + len(text) // 4

    found, scale = trace_texts(TRACE, PROMPTS, count, seed=0)
    assert len(asked) == 2
    assert scale.characters == pytest.approx(4.0)
    assert scale.around == pytest.approx(7.0)
    for job, request in zip(found, TRACE.requests, strict=True):
        assert count(job.prompt.text) == pytest.approx(request.input_tokens, abs=1)
        assert job.max_tokens == request.output_tokens
        assert len(job.tokens) == 0
    left, right = found[1].prompt.text, found[2].prompt.text
    assert left[:2000] == right[:2000]
    assert not np.array_equal(list(left[2100:]), list(right[2100:]))


def test_a_server_that_counts_nothing_cannot_replay():
    with pytest.raises(DataError, match="lengths cannot be met"):
        trace_texts(TRACE, PROMPTS, lambda text: 0, seed=0)
