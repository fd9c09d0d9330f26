"""Faults of single requests, of steps and of the engine: who is hurt, and who is not."""

import asyncio
import threading
import time

import httpx
import numpy as np
import pytest

from recguide_core.serving.streaming import TextStream

MODEL = "nld-tiny"
PATH = "/v1/completions"
POISON = 77


def body(number, tokens=40, **changes):
    prompt = f"<bos><|user|>Gina has {number} eggs.<|assistant|>"
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, **changes,
    }  # fmt: skip


async def post_all(live, bodies):
    async with httpx.AsyncClient(base_url=live.url, timeout=120) as client:
        return await asyncio.gather(*(client.post(PATH, json=b) for b in bodies))


@pytest.fixture
def breakable(start_server, empty_server):
    """A server of its own, checked to be empty at the end."""
    server = start_server()
    yield server
    assert server.settled() == empty_server


def poison_steps(server, tokens_before):
    """Steps raise while a request with the poisoned prompt has emitted enough tokens."""
    executor, engine = server.runtime.engine.executor, server.runtime.engine
    run = executor.execute

    def execute(step, needs):
        for live in engine.scheduler.running.values():
            if POISON in live.request.prompt.tolist() and len(live.tokens) >= tokens_before:
                raise RuntimeError("poisoned")
        return run(step, needs)

    executor.execute = execute


@pytest.mark.parametrize("tokens_before", [0, 1, 9])
def test_a_step_that_raises_costs_only_the_request_at_fault(breakable, tokens_before):
    bodies = [body(i) for i in range(5)]
    expected = [r.json()["choices"][0]["text"] for r in asyncio.run(post_all(breakable, bodies))]
    poison_steps(breakable, tokens_before)
    sick = {**body(1), "prompt": [1, 4, POISON, 5]}
    *healthy, ill = asyncio.run(post_all(breakable, [*bodies, sick]))
    assert [r.status_code for r in healthy] == [200] * 5
    assert [r.json()["choices"][0]["text"] for r in healthy] == expected
    assert [r.json()["usage"]["completion_tokens"] for r in healthy] == [40] * 5
    assert ill.status_code == 500
    assert ill.json()["error"]["code"] == "generation_failed"
    assert "Traceback" not in ill.text
    assert httpx.get(f"{breakable.url}/health").status_code == 200


def test_a_step_that_raises_once_costs_nobody_anything(breakable):
    bodies = [body(i) for i in range(4)]
    expected = [r.json()["choices"][0]["text"] for r in asyncio.run(post_all(breakable, bodies))]
    executor, run = breakable.runtime.engine.executor, breakable.runtime.engine.executor.execute
    calls = 0

    def execute(step, needs):
        nonlocal calls
        calls += 1
        if calls == 9:
            raise RuntimeError("once")
        return run(step, needs)

    executor.execute = execute
    responses = asyncio.run(post_all(breakable, bodies))
    assert [r.status_code for r in responses] == [200] * 4
    assert [r.json()["choices"][0]["text"] for r in responses] == expected
    assert breakable.runtime.thread.recovery.faults == 1


def test_logits_that_are_not_finite_end_one_request(breakable):
    engine = breakable.runtime.engine
    run = engine.executor.execute

    def execute(step, needs):
        readings = run(step, needs)
        slots = np.repeat(step.rows.request, np.diff(step.read_start))
        for slot, live in engine.scheduler.running.items():
            if POISON in live.request.prompt.tolist():
                readings.entropy[slots == slot] = np.nan
        return readings

    engine.executor.execute = execute
    sick = {**body(1), "prompt": [1, 4, POISON, 5]}
    well, ill = asyncio.run(post_all(breakable, [body(2), sick]))
    assert well.status_code == 200
    assert ill.status_code == 500
    assert "not finite" in ill.json()["error"]["message"]


def test_a_failing_stop_rule_ends_one_request(breakable, monkeypatch):
    feed = TextStream.feed

    def failing(self, token):
        if self._finder.stops == ("poison",) and len(self.pieces) == 5:
            raise ValueError("broken rule")
        return feed(self, token)

    monkeypatch.setattr(TextStream, "feed", failing)
    well, ill = asyncio.run(post_all(breakable, [body(2), body(2, stop=["poison"])]))
    assert well.status_code == 200
    assert ill.status_code == 500


def test_a_fault_in_a_stream_is_an_event(breakable):
    poison_steps(breakable, 3)
    sick = {**body(1, stream=True), "prompt": [1, 4, POISON, 5]}
    with httpx.stream("POST", f"{breakable.url}{PATH}", json=sick) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert '"generation_failed"' in lines[-2]
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_a_request(breakable, stream):
    asked = body(1, 1500, stream=stream)
    response = breakable.post(PATH, asked, headers={"x-request-timeout": "0.2"})
    if stream:
        assert '"request_timeout"' in response.text
    else:
        assert response.status_code == 504
        assert "0.2 s" in response.json()["error"]["message"]


def test_a_bad_deadline_is_refused(breakable):
    for value in ("soon", "-1", "0", "nan", "inf"):
        response = breakable.post(PATH, body(1), headers={"x-request-timeout": value})
        assert response.status_code == 400


def test_the_watchdog_reports_a_step_that_hangs(start_server, empty_server):
    server = start_server(stall_timeout=0.3)
    executor, run = server.runtime.engine.executor, server.runtime.engine.executor.execute
    held = threading.Event()

    def execute(step, needs):
        held.wait(20)
        return run(step, needs)

    executor.execute = execute
    try:
        response = server.post(PATH, body(1, 4), headers={"x-request-timeout": "1.5"})
        assert response.status_code == 504, "a client is answered although the engine hangs"
        assert httpx.get(f"{server.url}/health").json() == {"status": "stalled"}
        assert httpx.get(f"{server.url}/ready").status_code == 503
    finally:
        held.set()
    assert server.settled() == empty_server
    wait_for(lambda: httpx.get(f"{server.url}/health").status_code == 200)


def test_a_broken_engine_says_so_and_answers_everybody(start_server):
    server = start_server()

    def preempt(_):
        raise RuntimeError("corrupt")

    poison_steps(server, 2)
    server.runtime.engine.scheduler.preempt = preempt
    sick = {**body(1), "prompt": [1, 4, POISON, 5]}
    responses = asyncio.run(post_all(server, [body(2, 200), sick]))
    assert {r.status_code for r in responses} == {500}
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert server.post(PATH, body(1, 2)).status_code == 500
    assert server.runtime.admission.active == 0


def test_a_lost_event_is_caught_up(breakable):
    """A step that fails behind the emission of tokens gives them to their client all the same."""
    expected = breakable.post(PATH, body(4)).json()["choices"][0]["text"]
    engine, step, failed = breakable.runtime.engine, breakable.runtime.engine.step, []

    def failing():
        events = step()
        if any(event.block for event in events) and not failed:
            failed.append(sum(len(event.tokens) for event in events))
            raise RuntimeError("after the emission")
        return events

    engine.step = failing
    response = breakable.post(PATH, body(4))
    assert failed and failed[0] > 0
    assert response.status_code == 200
    assert response.json()["choices"][0]["text"] == expected
    assert response.json()["usage"]["completion_tokens"] == 40


def wait_for(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.02)
