"""One SGLang engine in a process of its own: runs a job file, writes what came of it.

A fault in SGLang's scheduler kills the process that started it, so no test starts an engine in
pytest's own. Usage: child.py JOB.json RESULT.json
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

BASE = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "dtype": "float32",
    "speculative_algorithm": "RECGUIDE",
    "max_total_tokens": 4096,
    "max_running_requests": 8,
    "mem_fraction_static": 0.05,
    "log_level": "warning",
    "skip_server_warmup": True,
}


def summary(answer):
    meta = answer["meta_info"]
    return {
        "tokens": answer["output_ids"],
        "text": answer.get("text"),
        "finish": meta["finish_reason"],
        "cached": meta.get("cached_tokens"),
        "rounds": meta.get("spec_verify_ct"),
        "accept_length": meta.get("spec_accept_length"),
        "histogram": meta.get("spec_correct_drafts_histogram"),
        "correct": meta.get("spec_num_correct_drafts"),
    }


async def one(engine, request):
    try:
        answer = await engine.async_generate(
            input_ids=request["ids"], sampling_params=request["params"], rid=request["key"]
        )
    except ValueError as error:
        return {"error": str(error)}
    return summary(answer)


async def staggered(engine, requests, abort):
    """All requests at once, each after its own delay; `abort`: key -> seconds."""

    async def later(request):
        await asyncio.sleep(request.get("after", 0))
        return await one(engine, request)

    async def stop(key, seconds):
        await asyncio.sleep(seconds)
        engine.tokenizer_manager.abort_request(rid=key)

    stops = [stop(key, seconds) for key, seconds in abort.items()]
    answers = await asyncio.gather(*(later(r) for r in requests), *stops)
    return answers[: len(requests)]


def main():
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import sglang

    began = time.perf_counter()
    engine = sglang.Engine(**{**BASE, "model_path": job["model"], **job.get("engine", {})})
    up = time.perf_counter() - began
    results = []
    for wave in job["waves"]:
        coroutine = staggered(engine, wave["requests"], wave.get("abort", {}))
        results.append(engine.loop.run_until_complete(coroutine))
    state = engine.get_server_info()["internal_states"][0]
    record = {
        "up": up,
        "took": time.perf_counter() - began,
        "waves": results,
        "accept_length": state.get("avg_spec_accept_length"),
    }
    Path(sys.argv[2]).write_text(json.dumps(record), encoding="utf-8")
    engine.shutdown()
    # A non-daemonic helper of SGLang may outlive the engine; the result is written.
    os._exit(0)


if __name__ == "__main__":
    main()
