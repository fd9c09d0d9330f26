"""One table of stops and budgets, over every method, whole and streamed."""

import json

import httpx
import pytest

from recguide_core.engine.planners import METHODS, TAKES_BLOCK

MODEL = "nld-tiny"
BLOCK = 8
PROMPT = "<bos><|user|>Gina has 14 eggs. Then Gina gives 5 eggs to Chloe. How many eggs does Gina"
PROMPT += " have?<|assistant|>"


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def plain(shared):
    """The answer of plain decoding, and its tokens' texts."""
    answer = ask(shared, "ar", max_tokens=60)
    assert answer["tokens"] == 60, "the table needs an answer that goes on"
    return answer


def ask(live, method, stream=False, **changes):
    """One greedy completion: text, tokens, spelled logprobs and finish."""
    body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "logprobs": 0, **changes}
    body["speculation"] = {"method": method}
    if method in TAKES_BLOCK:
        body["speculation"]["block_size"] = BLOCK
    if not stream:
        answer = live.post("/v1/completions", body).json()
        choice = answer["choices"][0]
        return result(choice["text"], choice["logprobs"], choice["finish_reason"], answer["usage"])
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    text, logprobs, finish, usage = "", {"tokens": [], "text_offset": []}, None, None
    url = f"{live.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk["usage"] or usage
            for choice in chunk["choices"]:
                text += choice["text"]
                finish = choice["finish_reason"] or finish
                for name in logprobs:
                    logprobs[name] += (choice["logprobs"] or {}).get(name, [])
    return result(text, logprobs, finish, usage)


def result(text, logprobs, finish, usage):
    spelled = logprobs["tokens"]
    assert len(spelled) == usage["completion_tokens"]
    return {
        "text": text,
        "tokens": usage["completion_tokens"],
        "spelled": spelled,
        "finish": finish,
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("budget", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1])
def test_a_budget_is_met_to_the_token(live, plain, method, budget, stream):
    answer = ask(live, method, stream, max_tokens=budget)
    assert answer["tokens"] == budget
    assert answer["finish"] == "length"
    assert answer["spelled"] == plain["spelled"][:budget]
    assert answer["text"] == "".join(plain["spelled"][:budget])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_context_ends_every_answer(start_server, narrow, method, stream):
    prompt = len(narrow.runtime.tokenizer.encode(PROMPT))
    room = narrow.runtime.engine.context - prompt
    answer = ask(narrow, method, stream, max_tokens=1000, ignore_eos=True)
    assert answer["tokens"] == room
    assert answer["finish"] == "length"
    assert answer["spelled"] == ask(narrow, "ar", max_tokens=room, ignore_eos=True)["spelled"]


@pytest.fixture(scope="module")
def narrow(start_server):
    return start_server(engine={"context": 64})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "where",
    [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 23],
)
def test_a_stop_at_any_token_of_a_window(live, plain, method, where, stream):
    """The stop spans the edge between token `where` and the next, so it is no token's text."""
    text = "".join(plain["spelled"])
    edge = len("".join(plain["spelled"][: where + 1]))
    stop = text[edge - 1 : edge + 1]
    at = text.index(stop)
    answer = ask(live, method, stream, max_tokens=60, stop=[stop, "never to be seen"])
    assert answer["text"] == text[:at]
    assert answer["finish"] == "stop"
    expected = first_token_completing(plain["spelled"], at + len(stop))
    assert answer["tokens"] == expected + 1
    assert answer["spelled"] == plain["spelled"][: expected + 1]


def first_token_completing(spelled, length):
    total = 0
    for place, piece in enumerate(spelled):
        total += len(piece)
        if total >= length:
            return place
    raise AssertionError("the stop lies behind the answer")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_long_stop_over_several_windows(live, plain, method, stream):
    text = "".join(plain["spelled"])
    stop = text[20:90]
    answer = ask(live, method, stream, max_tokens=60, stop=stop)
    assert (answer["text"], answer["finish"]) == (text[:20], "stop")


def test_a_near_miss_of_a_stop_is_shown(live, plain, method):
    text = "".join(plain["spelled"])
    answer = ask(live, method, True, max_tokens=30, stop=text[10:30] + "#")
    assert answer["text"] == "".join(plain["spelled"][:30])
    assert answer["finish"] == "length"
