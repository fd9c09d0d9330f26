"""Many clients, little memory, clients that leave: nothing is lost and nothing leaks."""

import asyncio
import random
import threading
import time

import httpx

MODEL = "nld-tiny"
PATH = "/v1/completions"


def body(number, tokens, **changes):
    prompt = f"<bos><|user|>Gina has {number} eggs.<|assistant|>"
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, **changes,
    }  # fmt: skip


async def post_all(live, bodies, limit=None):
    limits = httpx.Limits(max_connections=limit or len(bodies))
    async with httpx.AsyncClient(base_url=live.url, timeout=120, limits=limits) as client:
        return await asyncio.gather(*(client.post(PATH, json=b) for b in bodies))


def texts_of(responses):
    return [r.json()["choices"][0]["text"] for r in responses]


def test_128_clients_are_all_answered(live):
    bodies = [body(i % 16, 3) for i in range(128)]
    responses = asyncio.run(post_all(live, bodies))
    assert [r.status_code for r in responses] == [200] * 128
    assert all(r.json()["usage"]["completion_tokens"] == 3 for r in responses)
    texts = texts_of(responses)
    assert all(texts[i] == texts[i % 16] for i in range(128)), "same prompt, same text"


def test_memory_for_one_and_a_half_requests_serves_eight_clients(start_server, live, empty_server):
    tokens = 20
    length = len(live.runtime.tokenizer.encode(body(0, 1)["prompt"])) + tokens
    tight = start_server(engine={"kv_tokens": -(-length * 3 // 2 // 16) * 16})
    bodies = [body(i, tokens, speculation={"method": m}) for i, m in
              enumerate(["ar", "linear", "overlap", "tidar"] * 2)]  # fmt: skip
    expected = texts_of(asyncio.run(post_all(live, bodies)))
    responses = asyncio.run(post_all(tight, bodies))
    assert [r.status_code for r in responses] == [200] * 8
    assert texts_of(responses) == expected
    assert tight.runtime.engine.scheduler.preemptions > 0, "the memory must have been too small"
    assert tight.settled() == empty_server


def test_a_request_larger_than_the_memory_is_refused(start_server):
    tiny = start_server(engine={"kv_tokens": 64})
    response = tiny.post(PATH, body(1, 200))
    assert response.status_code == 400
    assert "KV pool" in response.json()["error"]["message"]
    assert tiny.post(PATH, body(1, 8)).status_code == 200


def test_a_full_queue_answers_429(start_server, empty_server):
    small = start_server(engine={"max_requests": 1}, max_queue=2)
    responses = asyncio.run(post_all(small, [body(i, 40) for i in range(8)]))
    refused = [r for r in responses if r.status_code == 429]
    assert {r.status_code for r in responses} == {200, 429}
    assert 0 < len(refused) <= 5
    for response in refused:
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "queue_full"
    assert small.settled() == empty_server
    assert small.post(PATH, body(1, 2)).status_code == 200


def test_200_random_aborts_then_a_normal_request(live):
    rng = random.Random(5)
    expected = live.post(PATH, body(3, 8)).json()["choices"][0]["text"]

    async def leave(client, place):
        asked = body(place % 7, 400, stream=bool(place % 2), n=1 + place % 3)
        task = asyncio.create_task(client.post(PATH, json=asked))
        await asyncio.sleep(rng.random() * 0.12)
        task.cancel()
        await asyncio.wait({task})

    async def storm():
        limits = httpx.Limits(max_connections=20)
        async with httpx.AsyncClient(base_url=live.url, timeout=60, limits=limits) as client:
            gate = asyncio.Semaphore(20)

            async def one(place):
                async with gate:
                    await leave(client, place)

            await asyncio.gather(*(one(place) for place in range(200)))

    asyncio.run(storm())
    assert live.post(PATH, body(3, 8)).json()["choices"][0]["text"] == expected


def test_a_disconnect_ends_the_work(start_server, empty_server):
    one = start_server(engine={"max_requests": 1})
    engine = one.runtime.engine
    asked = body(1, 1500, stream=True, speculation={"enabled": False})
    with httpx.stream("POST", f"{one.url}{PATH}", json=asked) as response:
        next(response.iter_lines())
    assert one.settled() == empty_server
    assert engine.counters.steps < 1000, "plain decoding needs 1500 forwards for 1500 tokens"


def test_an_abort_takes_effect_within_one_round(start_server, empty_server):
    """The client leaves while a step is held up: that step ends, and no other one is begun."""
    one = start_server(engine={"max_requests": 1})
    executor, run = one.runtime.engine.executor, one.runtime.engine.executor.execute
    begun, held = [], threading.Event()

    def execute(step, needs):
        begun.append(len(begun))
        if len(begun) == 4:
            held.wait(30)
        return run(step, needs)

    executor.execute = execute
    try:
        with httpx.stream("POST", f"{one.url}{PATH}", json=body(1, 1500, stream=True)) as answer:
            lines = answer.iter_lines()  # kept, because dropping it closes the connection
            next(lines)
            wait_for(lambda: len(begun) == 4)
        wait_for(lambda: not one.runtime.thread._messages.empty())
    finally:
        held.set()
    assert one.settled() == empty_server
    assert len(begun) == 4


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.01)


def test_an_idle_engine_sleeps(live):
    """It waits in the queue's blocking read: no polling, no busy loop."""
    live.post(PATH, body(1, 4))
    live.settled()
    before = live.runtime.engine.counters.steps
    wait_for(lambda: "_messages.get(block=wait)" in live.runtime.thread.where())
    assert live.runtime.thread.busy_seconds() == 0
    assert live.runtime.engine.counters.steps == before


def test_mixed_methods_in_one_batch_agree(live):
    wishes = [{"method": m} for m in live.runtime.methods]
    wishes += [{"enabled": False}, {"method": "linear", "block_size": 3}]
    bodies = [body(9, 32, speculation=wish) for wish in wishes]
    texts = texts_of(asyncio.run(post_all(live, bodies)))
    assert len(set(texts)) == 1
