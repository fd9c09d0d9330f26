"""Whatever is not done is refused with the standard error object; nothing is dropped."""

import json
import socket

import httpx
import pytest

MODEL = "nld-tiny"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def standard_error(response, status=400):
    """The error of a response, checked for its shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert "Traceback" not in response.text and ".py" not in response.text
    return body["error"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"store": True}, "store"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": "x" * 600}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"speculation": {"method": "magic"}}, "speculation.method"),
        ({"speculation": {"method": "recguide", "block_size": 8}}, "speculation.block_size"),
        ({"speculation": {"enabled": False, "method": "linear"}}, "speculation.method"),
        ({"speculation": {"block_size": 0}}, "speculation.block_size"),
        ({"speculation": {"block_size": 33}}, "speculation.block_size"),
        ({"speculation": {"method": "ar", "block_size": 4}}, "speculation.block_size"),
        ({"speculation": {"enabled": "no"}}, "speculation.enabled"),
        ({"speculation": {"blocks": 3}}, "speculation.blocks"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": "<mask>"}]}, "prompt"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "prompt"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_chat_refusals_name_the_field(live, changes, param):
    body = {"model": MODEL, "messages": HELLO, **changes}
    error = standard_error(live.post(CHAT, body))
    assert error["param"] == param or error["param"].startswith(f"{param}.")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2048]}, "prompt"),
        ({"prompt": [3]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [10] * 2048}, "prompt"),
        ({"prompt": ["x"] * 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_completion_refusals_name_the_field(live, changes, param):
    error = standard_error(live.post(TEXT, {"model": MODEL, "prompt": "Hi", **changes}))
    assert error["param"] == param or error["param"].startswith(f"{param}.")


@pytest.mark.parametrize(
    "changes",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"tools": [], "tool_choice": "none", "functions": []},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"store": False, "metadata": {"a": "b"}, "user": "someone", "service_tier": "auto"},
        {"n": None, "stop": None, "seed": None, "top_p": None, "logprobs": None},
    ],
)
def test_neutral_values_pass(live, changes):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2, "temperature": 0, **changes}
    assert live.post(CHAT, body).status_code == 200


def test_an_unknown_model(live):
    error = standard_error(live.post(CHAT, {"model": "gpt", "messages": HELLO}), 404)
    assert error["code"] == "model_not_found"
    standard_error(live.post(CHAT, {"messages": HELLO}))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model": "\\ud800"}', b"[" * 5000,
     b'{"model": "nld-tiny", "messages": NaN}', b'{"a":1e999}'],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, TEXT, "/playground/stream"])
def test_malformed_bodies(live, path, body):
    headers = {"content-type": "application/json"}
    standard_error(httpx.post(f"{live.url}{path}", content=body, headers=headers))


def test_lone_surrogates_in_every_text_field(live):
    for field in ("user", "stop"):
        raw = f'{{"model": "{MODEL}", "messages": [], "{field}": "\\udc00"}}'
        headers = {"content-type": "application/json"}
        standard_error(httpx.post(f"{live.url}{CHAT}", content=raw, headers=headers))


def test_other_content_types(live):
    response = httpx.post(
        f"{live.url}{CHAT}", content=b"{}", headers={"content-type": "text/plain"}
    )
    standard_error(response, 415)


def test_paths_and_methods(live):
    standard_error(httpx.get(f"{live.url}/v1/embeddings"), 404)
    standard_error(httpx.get(f"{live.url}{CHAT}"), 405)
    standard_error(httpx.post(f"{live.url}/health"), 405)
    standard_error(httpx.get(f"{live.url}/page/..%2fapp.py"), 404)
    standard_error(httpx.get(f"{live.url}/page/runtime.py"), 404)


def test_a_large_body_is_refused_whether_its_length_is_told_or_not(start_server):
    small = start_server(max_body=2048)
    headers = {"content-type": "application/json"}
    body = b'{"prompt": "' + b"x" * 4096 + b'"}'
    standard_error(httpx.post(f"{small.url}{TEXT}", content=body, headers=headers), 413)
    pieces = (body[i : i + 512] for i in range(0, len(body), 512))
    standard_error(httpx.post(f"{small.url}{TEXT}", content=pieces, headers=headers), 413)


def test_a_huge_prompt_is_refused_untokenized(live, monkeypatch):
    def encode(_):
        raise AssertionError("such a prompt must not reach the tokenizer")

    monkeypatch.setattr(live.runtime.tokenizer, "encode", encode)
    error = standard_error(live.post(TEXT, {"model": MODEL, "prompt": "x " * 1_500_000}))
    assert error["code"] == "context_length_exceeded"


def test_a_body_that_never_ends_times_out(live, monkeypatch):
    monkeypatch.setattr("recguide_core.serving.guard.BODY_SECONDS", 0.2)
    host, port = live.url.removeprefix("http://").split(":")
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as wire:
        wire.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        answer = b""
        # Head and body may come in parts.
        while b'"error"' not in answer and (part := wire.recv(4000)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"error"' in answer


def test_garbage_instead_of_http(live):
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as wire:
        wire.sendall(b"\x00\x01garbage\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{live.url}/health").status_code == 200


def test_the_api_key(start_server):
    guarded = start_server(api_key="s3cret")
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        standard_error(guarded.post(CHAT, body, headers=headers), 401)
    right = {"authorization": "Bearer s3cret"}
    assert guarded.post(CHAT, body, headers=right).status_code == 200
    standard_error(httpx.get(f"{guarded.url}/metrics"), 401)
    assert httpx.get(f"{guarded.url}/metrics", headers=right).status_code == 200
    assert httpx.get(f"{guarded.url}/health").status_code == 200
    assert httpx.get(f"{guarded.url}/").status_code == 200


def test_web_origins_are_refused_unless_named(start_server, live):
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    closed = httpx.options(f"{live.url}{CHAT}", headers=ask)
    assert "access-control-allow-origin" not in closed.headers
    opened = start_server(cors_origins=("https://a.example",))
    answer = httpx.options(f"{opened.url}{CHAT}", headers=ask)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    other = {**ask, "origin": "https://b.example"}
    refused = httpx.options(f"{opened.url}{CHAT}", headers=other)
    assert "access-control-allow-origin" not in refused.headers
