"""Stops, budgets, aborts, the context's end, and retraction when the pool is too small.

SGLang checks its KV pool at every step and when idle; a slot lost by any ending fails the run.
"""

import json

import pytest

pytest.importorskip("sglang", reason="needs the SGLang environment: make test-sglang")

from engines import greedy, run_sglang

from recguide_core.model.registry import bundled_folder
from recguide_core.sglang_plugin.settings import PluginSettings

PAGE, POOL, CONTEXT = 16, 640, 512
LONG = 200


def by(method, request, **more):
    wish = {"method": method, **({"block_size": 8} if method != "ar" else {})}
    return {**request, "params": {**request["params"], "custom_params": wish, **more}}


@pytest.fixture(scope="module")
def reference(embedded, prompts):
    """AR's tokens to the end of a context of `CONTEXT`, without stops."""
    requests = [greedy(str(i), p, CONTEXT - len(p)) for i, p in enumerate(prompts[:6])]
    done = embedded.run(requests)
    return [done[r["key"]].tokens.tolist() for r in requests]


def stop_place(tokens, embedded):
    """The last place before EOS at which a token appears for the first time."""
    ends = [i for i, token in enumerate(tokens) if token in embedded.model.eos_ids]
    end = min(ends, default=len(tokens))
    return max(i for i in range(end) if tokens.index(tokens[i]) == i)


@pytest.fixture(scope="module")
def crowd(embedded):
    """Eight longer prompts, answered past their EOS so that the pool is short whatever the model
    says; SGLang admits them by their expected, not by their reserved length.
    """
    lines = (bundled_folder().parent / "demo_prompts.jsonl").read_text().splitlines()
    texts = sorted((json.loads(line)["prompt"] for line in lines), key=len)[-8:]
    return [
        by("overlap", greedy(f"crowd-{i}", embedded.encode(text), LONG))
        for i, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory, prompts, reference, embedded, crowd):
    stop_id = reference[0][stop_place(reference[0], embedded)]
    waves = {
        "stop id": [
            by("overlap", greedy("stop", prompts[0], 90, stop_token_ids=[stop_id],
                                 ignore_eos=False))],
        "stop text": [by("overlap", greedy("text", prompts[1], 90), stop=["Question"])],
        "eos": [by("overlap", greedy("eos", prompts[3], 200, ignore_eos=False))],
        "budgets": [by("overlap", greedy(f"budget-{n}", prompts[2], n)) for n in range(1, 8)],
        "context": [by("overlap", greedy("context", prompts[4], CONTEXT - len(prompts[4])))],
        "refused": [
            greedy("penalty", prompts[0], 8, repetition_penalty=1.3),
            greedy("grammar", prompts[0], 8, regex="[0-9]+"),
            greedy("method", prompts[0], 8, custom_params={"method": "tidar"}),
            greedy("fine", prompts[0], 8),
        ],
        "retraction": crowd,
        "abort": [by("ar", greedy("aborted", prompts[5], 400)),
                  by("overlap", greedy("beside", prompts[2], 60))],
        "after": [by("overlap", greedy("after", prompts[0], 30))],
        "seeded a": [by("ar", greedy("a", prompts[0], 40), temperature=1.5, sampling_seed=7)],
        "seeded b": [by("overlap", greedy("b", prompts[0], 40), temperature=1.5, sampling_seed=7)],
    }  # fmt: skip
    body = [{"requests": wave} for wave in waves.values()]
    body[list(waves).index("abort")]["abort"] = {"aborted": 0.4}
    record = run_sglang(
        tmp_path_factory.mktemp("endings"),
        body,
        PluginSettings(method="linear", also=("overlap", "ar")),
        {
            "page_size": PAGE,
            "max_total_tokens": POOL,
            "context_length": CONTEXT,
            "schedule_conservativeness": 0.05,
            "log_level": "info",
        },
    )
    record["waves"] = dict(zip(waves, record["waves"], strict=True))
    return record


def test_a_stop_id_inside_a_window_ends_the_request_there(run, reference, embedded):
    answer = run["waves"]["stop id"][0]
    place = stop_place(reference[0], embedded)
    assert answer["tokens"] == reference[0][: place + 1]
    assert answer["finish"] == {"type": "stop", "matched": reference[0][place]}


def test_a_stop_text_ends_the_request_with_its_tokens_right(run, reference):
    answer = run["waves"]["stop text"][0]
    assert answer["tokens"] == reference[1][: len(answer["tokens"])]
    assert "Question" not in answer["text"]


def test_eos_ends_the_request(run, reference, embedded):
    answer = run["waves"]["eos"][0]
    eos = min((reference[3].index(e) for e in embedded.model.eos_ids if e in reference[3]),
              default=199)  # fmt: skip
    assert answer["tokens"] == reference[3][: eos + 1][:200]


def test_every_budget_is_kept_to_the_token(run, reference):
    for n, answer in enumerate(run["waves"]["budgets"], start=1):
        assert answer["tokens"] == reference[2][:n]
        assert answer["finish"] == {"type": "length", "length": n}


def test_a_request_may_run_into_the_end_of_the_context(run, reference, prompts):
    answer = run["waves"]["context"][0]
    assert answer["tokens"] == reference[4][: len(answer["tokens"])]
    # SGLang itself stops two tokens short of the limit.
    assert len(prompts[4]) + len(answer["tokens"]) >= CONTEXT - 2


def test_what_rows_cannot_do_is_refused_at_admission(run):
    penalty, grammar, method, fine = run["waves"]["refused"]
    assert "a penalty" in str(penalty)
    assert "grammar" in str(grammar)
    assert "no method 'tidar'" in str(method)
    assert len(fine["tokens"]) == 8


def test_a_small_pool_retracts_requests_and_changes_no_token(run, crowd, embedded):
    assert "Retract" in run["log"], "the pool was large enough; the test shows nothing"
    expected = embedded.run(crowd)
    for request, answer in zip(crowd, run["waves"]["retraction"], strict=True):
        assert answer["tokens"] == expected[request["key"]].tokens.tolist(), request["key"]


def test_an_abort_ends_one_request_and_no_other(run, reference):
    aborted, beside = run["waves"]["abort"]
    assert aborted["finish"]["type"] == "abort"
    assert len(aborted["tokens"]) < 400
    assert aborted["tokens"] == reference[5][: len(aborted["tokens"])]
    assert beside["tokens"] == reference[2][:60]
    assert run["waves"]["after"][0]["tokens"] == reference[0][:30]


def test_seeded_sampling_gives_the_same_tokens_by_any_method(run, reference):
    a, b = run["waves"]["seeded a"][0]["tokens"], run["waves"]["seeded b"][0]["tokens"]
    assert a == b
    assert a != reference[0][:40]
