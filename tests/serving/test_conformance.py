"""The API through the official client: whole and streamed, sync and async."""

import asyncio
import json
import math
import shutil
import subprocess

import httpx
import openai
import pytest

MODEL = "nld-tiny"


def chat(client, question, **options):
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], **options
    )


def drain(stream):
    """Text per choice, finish reasons, usage and the logprob rows of a chat stream."""
    texts, finishes, usage, rows = {}, {}, None, {}
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            finishes[choice.index] = choice.finish_reason or finishes.get(choice.index)
            if choice.logprobs:
                rows.setdefault(choice.index, []).extend(choice.logprobs.content)
    return texts, finishes, usage, rows


def test_models(live):
    client = live.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "recguide"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "seed": 7}])
def test_chat_streamed_equals_chat_whole(live, question, options):
    client = live.client()
    whole = chat(client, question, max_tokens=40, **options)
    stream = chat(
        client,
        question,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
        **options,
    )
    texts, finishes, usage, _ = drain(stream)
    assert texts[0] == whole.choices[0].message.content != ""
    assert finishes[0] == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_completions_streamed_equal_completions_whole(live):
    client = live.client()
    options = {"model": MODEL, "prompt": "Gina has 14", "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**options)
    text = "".join(c.choices[0].text for c in client.completions.create(stream=True, **options))
    assert text == whole.choices[0].text != ""


def test_the_async_client(live, question):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
            options = {"max_tokens": 20, "temperature": 0}
            whole = await chat(client, question, **options)
            text = ""
            async for chunk in await chat(client, question, stream=True, **options):
                text += chunk.choices[0].delta.content or ""
            return whole.choices[0].message.content, text

    whole, text = asyncio.run(ask())
    assert whole == text != ""


@pytest.mark.parametrize("stream", [False, True])
def test_n_answers_use_seed_plus_index(live, question, stream):
    client = live.client()
    options = {"temperature": 1.8, "max_tokens": 24}
    if stream:
        texts = drain(chat(client, question, n=3, seed=11, stream=True, **options))[0]
    else:
        answer = chat(client, question, n=3, seed=11, **options)
        texts = {choice.index: choice.message.content for choice in answer.choices}
    alone = [
        chat(client, question, seed=11 + i, **options).choices[0].message.content for i in range(3)
    ]
    assert [texts[i] for i in range(3)] == alone
    assert len(set(alone)) > 1, "three seeds should not all agree"


@pytest.mark.parametrize(
    ("method", "block"),
    [
        ("linear", 4),
        ("linear", 32),
        ("overlap", None),
        ("overlap", 5),
        ("tidar", 8),
        ("dflash", 6),
        ("adaptive", None),
        ("recguide", None),
    ],
)
def test_a_seeded_request_gives_the_same_text_by_every_method(live, question, method, block):
    options = {"temperature": 0.7, "top_p": 0.95, "seed": 3, "max_tokens": 24}
    wish = {"method": method, **({"block_size": block} if block else {})}
    plain = live.chat(**options, speculation={"enabled": False}).json()
    other = live.chat(**options, speculation=wish).json()
    assert other["choices"][0]["message"] == plain["choices"][0]["message"]
    assert other["usage"]["speculation"]["method"] == method


def test_usage_counts_and_speculation(live, question):
    answer = chat(live.client(), question, max_tokens=48, temperature=0)
    usage = answer.usage
    spec = usage.model_extra["speculation"]
    assert usage.completion_tokens == 48
    assert spec["method"] == "overlap"
    assert spec["round_tokens"] == 47  # the prompt's forward gave the first token
    assert sum(spec["blocks"].values()) == spec["rounds"]
    assert spec["forwards"] == 2 * spec["rounds"] - spec["branch_hits"]
    assert spec["tau"] == pytest.approx(2 * 47 / spec["forwards"])


def test_speculation_can_be_turned_off(live, question):
    answer = live.chat(max_tokens=12, speculation={"enabled": False}).json()
    spec = answer["usage"]["speculation"]
    assert spec["method"] == "ar"
    assert spec["forwards"] == spec["rounds"] == 11
    assert spec["blocks"] == {"1": 11}


@pytest.mark.parametrize("name", ["block_size", "block"])
def test_a_request_sets_its_block(live, name):
    wish = {"method": "linear", name: 5}
    spec = live.chat(max_tokens=24, speculation=wish).json()["usage"]["speculation"]
    assert set(spec["blocks"]) <= {"1", "2", "3", "4", "5"}
    assert "5" in spec["blocks"]


def test_chat_logprobs_equal_plain_decodings(live, question):
    client = live.client()
    options = {"max_tokens": 24, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    ours = chat(client, question, **options)
    plain = chat(
        client, question, extra_body={"speculation": {"enabled": False}}, **options
    ).choices[0]
    rows = ours.choices[0].logprobs.content
    assert len(rows) == ours.usage.completion_tokens == 24
    assert "".join(row.token for row in rows) == ours.choices[0].message.content
    for row, other in zip(rows, plain.logprobs.content, strict=True):
        assert row.token == other.token
        assert row.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert len(row.top_logprobs) == 3
        assert row.top_logprobs[0].logprob == pytest.approx(row.logprob)
        assert bytes(row.bytes).decode() == row.token
    streamed = drain(chat(client, question, stream=True, **options))[3][0]
    assert [r.token for r in streamed] == [r.token for r in rows]
    assert [r.logprob for r in streamed] == pytest.approx([r.logprob for r in rows], abs=1e-3)


def test_completion_logprobs_and_offsets(live):
    answer = live.client().completions.create(
        model=MODEL, prompt="Gina has 14", max_tokens=12, temperature=0, logprobs=2
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 12
    assert all(len(top) == 2 and all(map(math.isfinite, top.values()))
               for top in logprobs.top_logprobs)  # fmt: skip
    for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert choice.text[offset : offset + len(token)] == token


def test_prompts_as_lists_and_ids(live):
    client = live.client()
    ids = live.runtime.tokenizer.encode("Gina has 14")
    options = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    text = client.completions.create(prompt="Gina has 14", **options)
    assert text.usage.prompt_tokens == len(ids)
    one = client.completions.create(prompt=ids, **options)
    many = client.completions.create(prompt=[ids, ids], n=2, **options)
    assert one.choices[0].text == text.choices[0].text
    assert [c.text for c in many.choices] == [one.choices[0].text] * 4
    assert many.usage.prompt_tokens == 2 * len(ids)
    assert many.usage.completion_tokens == sum([one.usage.completion_tokens] * 4)


@pytest.mark.parametrize("stream", [False, True])
def test_echo(live, stream):
    client = live.client()
    options = {"model": MODEL, "prompt": "Gina has 14", "max_tokens": 6, "temperature": 0}
    plain = client.completions.create(**options).choices[0].text
    echoed = client.completions.create(echo=True, stream=stream, **options)
    if stream:
        text = "".join(chunk.choices[0].text for chunk in echoed)
    else:
        text = echoed.choices[0].text
    assert text == "Gina has 14" + plain


def test_logit_bias_is_obeyed_by_every_method(live):
    banned = live.chat(max_tokens=1, logprobs=True).json()["choices"][0]["logprobs"]["content"][0]
    token = live.runtime.tokenizer.encode(banned["token"])[0]
    options = {"max_tokens": 12, "logit_bias": {str(token): -100}}
    texts = {
        live.chat(**options, speculation={"method": m}).json()["choices"][0]["message"]["content"]
        for m in live.runtime.methods
    }
    assert len(texts) == 1
    assert not texts.pop().startswith(banned["token"])


def test_chat_parts_and_roles(live):
    def ask(messages):
        return live.chat(messages=messages, max_tokens=8).json()["choices"][0]["message"]["content"]

    parts = [{"type": "text", "text": "Gina has "}, {"type": "text", "text": "14 eggs."}]
    assert ask([{"role": "user", "content": parts}]) == ask(
        [{"role": "user", "content": "Gina has 14 eggs."}]
    )
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert ask(system) == ask([{"role": "developer", "content": "Be brief."}, system[1]])


def test_both_names_of_the_budget(live):
    for name in ("max_tokens", "max_completion_tokens"):
        assert live.chat(**{name: 3}).json()["usage"]["completion_tokens"] == 3


def test_unspecified_budgets_reach_the_end_of_text_or_context(live):
    answer = live.chat().json()
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert answer["usage"]["total_tokens"] <= live.runtime.engine.context


def test_default_temperature_samples(live):
    body = {
        "temperature": None,
        "max_tokens": 12,
        "n": 6,
        "messages": [{"role": "user", "content": "A"}],
    }
    texts = {choice["message"]["content"] for choice in live.chat(**body).json()["choices"]}
    assert len(texts) > 1


def test_ignore_eos_goes_on(live):
    stopped = live.chat(max_tokens=400).json()
    assert stopped["choices"][0]["finish_reason"] == "stop", "the model should end its answer"
    on = live.chat(max_tokens=stopped["usage"]["completion_tokens"] + 5, ignore_eos=True).json()
    assert on["choices"][0]["finish_reason"] == "length"


def test_curl(live):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    body = {"model": MODEL, "prompt": "Gina has", "max_tokens": 4, "temperature": 0}
    answers = []
    for stream in (False, True):
        asked = json.dumps({**body, "stream": stream})
        command = ["curl", "-sS", "--no-buffer", "--max-time", "60", f"{live.url}/v1/completions"]
        command += ["-H", "Content-Type: application/json", "-d", asked]
        answers.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    chunks = [json.loads(c[6:]) for c in answers[1].split("\n\n") if c.startswith("data: {")]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert json.loads(answers[0])["choices"][0]["text"] == text != ""
    assert answers[1].endswith("data: [DONE]\n\n")


def test_the_wire_format_of_a_stream(live, question):
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "max_tokens": 8,
        "temperature": 0,
    }
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
    assert '"usage"' not in lines[0]
