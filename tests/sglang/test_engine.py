"""RecGuide inside SGLang against the embedded engine: tokens, rounds, decisions.

The engine runs in a child process with SGLang's strict leak check and its page invariants on; a
violation of either ends the scheduler and fails the test.
"""

import json

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import LENGTHS, greedy, run_sglang

from recguide_core.sglang_plugin.settings import PluginSettings
from recguide_core.tuning.guidance import load_tuned

BLOCK = 8
METHODS = ("recguide", "linear", "overlap", "adaptive", "tidar", "ar")
CHOOSE = {"adaptive", "recguide"}
"""Methods that choose their blocks; the others are asked for `BLOCK`."""


def asking(method, key, ids, tokens):
    wish = {"method": method} | ({} if method in CHOOSE else {"block_size": BLOCK})
    return greedy(key, ids, tokens, custom_params=wish)


def streams(method, prompts):
    return [
        asking(method, f"{method}-{i}", ids, n)
        for i, (ids, n) in enumerate(zip(prompts, LENGTHS, strict=True))
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory, prompts, policy):
    """One engine: a lone request and eight streams by every method, then all methods at once."""
    folder = tmp_path_factory.mktemp("engine")
    settings = PluginSettings(
        method=METHODS[0],
        also=METHODS[1:],
        policy=str(policy),
        model="nld-tiny",
        trace=str(folder / "trace.jsonl"),
    )
    waves = {}
    for method in METHODS:
        waves[f"alone {method}"] = [asking(method, f"alone-{method}", prompts[0], 96)]
    for method in METHODS[:-1]:
        waves[f"eight {method}"] = streams(method, prompts)
    mixed = [streams(METHODS[i % len(METHODS)], prompts)[i] for i in range(len(prompts))]
    waves["mixed"] = [{**r, "key": f"mixed-{r['key']}"} for r in mixed]
    record = run_sglang(
        folder, [{"requests": w} for w in waves.values()], settings, {"page_size": 1}
    )
    record["waves"] = dict(zip(waves, record["waves"], strict=True))
    lines = (folder / "trace.jsonl").read_text().splitlines()
    record["trace"] = [json.loads(line) for line in lines]
    return record


@pytest.mark.parametrize("method", METHODS)
def test_a_lone_request_gives_the_tokens_of_ar(run, autoregressive, method):
    answer = run["waves"][f"alone {method}"][0]
    assert answer["tokens"] == autoregressive[0]


@pytest.mark.parametrize("wave", [f"eight {method}" for method in METHODS[:-1]] + ["mixed"])
def test_eight_streams_of_different_lengths_give_the_tokens_of_ar(run, autoregressive, wave):
    for i, answer in enumerate(run["waves"][wave]):
        assert answer["tokens"] == autoregressive[i][: LENGTHS[i]], i
        assert answer["finish"] == {"type": "length", "length": LENGTHS[i]}


def test_prompts_come_from_the_radix_cache_after_the_first_time(run):
    assert all(a["cached"] > 0 for a in run["waves"]["mixed"] if a["tokens"][1:])


@pytest.mark.parametrize("method", METHODS)
def test_a_request_is_decided_as_by_the_embedded_engine(run, embedded, prompts, policy, method):
    """Blocks, branches, hits, sources, accepted lengths and tokens, round by round.

    A draft whose two best tokens lie within 1e-4 may differ between the engines; there is none on
    this prompt.
    """
    tuned = load_tuned("nld-tiny", embedded.model.hash, "cpu", policy=policy)
    block = 0 if method in CHOOSE or method == "ar" else BLOCK
    request = [greedy("alone", prompts[0], 96)]
    embedded.run(request, method, block, tuned.guidance, tuned.positions)
    ours = [line for line in run["trace"] if line["request"] == f"alone-{method}"]
    assert len(ours) == len(embedded.rounds) > 0
    for mine, other in zip(ours, embedded.rounds, strict=True):
        entropies = mine["entropy"], other["entropy"]
        assert abs(entropies[0] - entropies[1]) < 1e-3
        same = {"request": "alone", "entropy": 0.0}
        assert mine | same == other | same
    assert run["waves"][f"alone {method}"][0]["rounds"] == len(ours)


def test_methods_do_what_their_names_say(run):
    def of(method, field):
        return [x[field] for x in run["trace"] if x["request"].startswith(f"{method}-")]

    assert set(of("linear", "source")) <= {0, 1}
    for method in ("overlap", "recguide"):
        assert {2, 3} & set(of(method, "source")), f"{method} never reused a branch"
    assert 4 in of("tidar", "source")
    for method in CHOOSE:
        assert len(set(of(method, "block"))) > 1, f"{method} kept to one block size"


def test_sglangs_accept_figures_count_rounds_only(run):
    """A step in which a request only drafts is no verify call."""
    answers = [a for wave in run["waves"].values() for a in wave]
    for answer in answers:
        histogram = answer["histogram"] or []
        assert sum(histogram) == (answer["rounds"] or 0)
        assert sum(i * n for i, n in enumerate(histogram)) == (answer["correct"] or 0)
    accepted = [line["accepted"] for line in run["trace"]]
    assert sum(a["rounds"] or 0 for a in answers) == len(accepted)
    # SGLang adds intervals to the total when it logs, so the last one may be missing.
    assert run["accept_length"] == pytest.approx(sum(accepted) / len(accepted), rel=0.1)
