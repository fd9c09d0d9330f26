"""RecGuide inside SGLang against the embedded engine: tokens, rounds, decisions, endings.

Each engine runs in a child process with SGLang's strict leak check and its page invariants on; a
violation of either ends the scheduler and fails the test.
"""

import json

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import greedy, run_sglang

from recguide_core.sglang_plugin.settings import PluginSettings
from recguide_core.tuning.guidance import load_tuned

TEXTS = [
    "Tom has 12 apples and buys 5 more. How many apples has Tom?",
    "Write a function that adds two numbers.",
    "List the days of the week.",
    "Say hello.",
    "What is 17 plus 25?",
    "Sort these numbers: 4, 2, 9.",
    "Kevin shares 36 cookies equally among six shelves. How many cookies are on a shelf?",
    "Repeat the word cat three times.",
]
LENGTHS = [48, 96, 24, 7, 64, 33, 80, 1]

CASES = {
    # method: (B, page size, more engine arguments)
    "linear": (8, 16, {}),
    "overlap": (8, 1, {}),
    "tidar": (4, 1, {}),
    "adaptive": (None, 16, {}),
    "recguide": (None, 1, {}),
}
CLOSE = 1e-4
"""Draft top-2 gaps below this are near-ties: the two engines may round them apart."""


@pytest.fixture(scope="module")
def prompts(embedded):
    return [embedded.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def autoregressive(embedded, prompts):
    """AR's tokens of every prompt, 96 each."""
    requests = [greedy(str(i), ids, 96) for i, ids in enumerate(prompts)]
    done = embedded.run(requests)
    return [done[str(i)].tokens.tolist() for i in range(len(prompts))]


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory, prompts, policy):
    """One engine run per method: a lone request, eight of different lengths, endings."""
    method = request.param
    block, page, arguments = CASES[method]
    folder = tmp_path_factory.mktemp(method)
    trace = folder / "trace.jsonl"
    settings = PluginSettings(
        method=method, block=block, policy=str(policy), model="nld-tiny", trace=str(trace)
    )
    alone = [greedy("alone", prompts[0], 96)]
    streams = [
        greedy(f"stream-{i}", ids, n)
        for i, (ids, n) in enumerate(zip(prompts, LENGTHS, strict=True))
    ]
    again = [greedy("again", prompts[0], 40)]
    waves = [{"requests": alone}, {"requests": streams}, {"requests": again}]
    record = run_sglang(folder, waves, settings, {"page_size": page, **arguments})
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    return method, block, record, lines


def test_a_lone_request_gives_the_tokens_of_ar(case, autoregressive):
    assert case[2]["waves"][0][0]["tokens"] == autoregressive[0]


def test_eight_streams_of_different_lengths_give_the_tokens_of_ar(case, autoregressive):
    for i, answer in enumerate(case[2]["waves"][1]):
        assert answer["tokens"] == autoregressive[i][: LENGTHS[i]], i
        assert answer["finish"] == {"type": "length", "length": LENGTHS[i]}


def test_a_cached_prompt_changes_nothing(case, autoregressive):
    answer = case[2]["waves"][2][0]
    assert answer["tokens"] == autoregressive[0][:40]
    assert answer["cached"] > 0


def test_a_lone_request_is_decided_as_by_the_embedded_engine(case, embedded, prompts, policy):
    """Blocks, branches, hits, sources, accepted lengths, entropies and tokens, round by round."""
    method, block, record, lines = case
    tuned = load_tuned("nld-tiny", embedded.model.hash, "cpu", policy=policy)
    guidance = tuned.guidance
    embedded.run([greedy("alone", prompts[0], 96)], method, block, guidance, tuned.positions)
    ours = [line for line in lines if line["request"] == "alone"]
    theirs = embedded.rounds
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert abs(mine.pop("entropy") - other.pop("entropy")) < 1e-3
        assert mine == other
    assert record["waves"][0][0]["rounds"] == len(ours)


def test_accept_figures_count_rounds_only(case):
    """A step in which a request only drafts is no verify call in SGLang's own figures."""
    method, _, record, lines = case
    for wave in record["waves"]:
        for answer in wave:
            histogram = answer["histogram"] or []
            assert sum(histogram) == answer["rounds"]
            assert sum(i * n for i, n in enumerate(histogram)) == answer["correct"]
    accepted = [line["accepted"] for line in lines]
    assert record["accept_length"] == pytest.approx(sum(accepted) / len(accepted), rel=0.2)
    if method in ("overlap", "recguide", "tidar"):
        assert any(line["source"] > 1 for line in lines), "no branch was ever reused"
    if method in ("adaptive", "recguide"):
        assert len({line["block"] for line in lines}) > 1, "one block size only"
