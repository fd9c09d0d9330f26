"""Plain AR decoding of RecGuide against `generate` of transformers: same weights, C = 1.

    python benchmarks/vs_transformers.py --model nld-tiny --tokens 96 --repeats 5

Both run greedily in float32 on the CPU with the same number of threads, for the same number of
tokens (EOS is ignored), prompt after prompt. Repeats of the two alternate, so that a change of
the machine's load meets both. MASK is excluded in both. The texts are compared as well: a
comparison of speeds means nothing if they differ.

`--json` prints one line: tokens per second of both (median, lowest and highest repeat) and ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from recguide_core.datasets import load_prompts, select
from recguide_core.engine.engine import Engine
from recguide_core.engine.methods import make_planner
from recguide_core.engine.settings import EngineSettings
from recguide_core.model.registry import LoadedModel, load_model
from recguide_core.model.weights import weight_files
from recguide_core.records import Request

GOAL = 1.3
"""How much faster than `generate` plain AR has to be."""


def transformers_model(folder: Path) -> Any:
    """The checkpoint in the architecture of transformers that computes the same: Llama, or
    Ministral-3 where positions use YaRN."""
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = dict(config["rope_parameters"])
    yarn = rope.get("rope_type") == "yarn"
    kind = "Ministral3" if yarn else "Llama"
    shared = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
    )
    settings = getattr(transformers, f"{kind}Config")(
        **{name: config[name] for name in shared},
        rope_parameters=rope,
        attn_implementation="sdpa",
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(settings)
    tensors = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                renamed = name.replace("encoder.", "model.").replace("diffusion_head", "lm_head")
                tensors[renamed] = opened.get_tensor(name).float()
    left = model.load_state_dict(tensors, strict=False)
    if left.unexpected_keys or set(left.missing_keys) - {"lm_head.weight"}:
        raise SystemExit(f"{folder} does not fit {kind}: {left}")
    return model.eval().float()


def run_ours(engine: Engine, prompts: list[np.ndarray], tokens: int) -> list[list[int]]:
    outputs = []
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), prompt, tokens, ignore_eos=True))
        finished = [event.finished for event in engine.run() if event.finished is not None]
        outputs.append(finished[0].tokens.tolist())
    return outputs


def run_theirs(model: Any, prompts: list[np.ndarray], tokens: int, mask_id: int) -> list[list[int]]:
    outputs = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.from_numpy(prompt)[None]
            text = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                use_cache=True,
                suppress_tokens=[mask_id],
            )
            outputs.append(text[0, len(prompt) :].tolist())
    return outputs


def timed(run: Any) -> tuple[float, list[list[int]]]:
    began = time.perf_counter()
    outputs = run()
    seconds = time.perf_counter() - began
    return sum(map(len, outputs)) / seconds, outputs


def compare(model: LoadedModel, prompts: list[np.ndarray], tokens: int, repeats: int) -> dict:
    assert model.folder is not None, "a bundled or local checkpoint"
    theirs = transformers_model(model.folder)
    engine = Engine(model, planners=[make_planner("ar")], settings=EngineSettings(max_requests=1))
    mask_id = model.config.mask_id
    pairs = []
    run_ours(engine, prompts[:1], tokens)
    run_theirs(theirs, prompts[:1], tokens, mask_id)
    for _ in range(repeats):
        mine = timed(lambda: run_ours(engine, prompts, tokens))
        other = timed(lambda: run_theirs(theirs, prompts, tokens, mask_id))
        pairs.append((mine, other))
    ours, others = pairs[0][0][1], pairs[0][1][1]
    same = sum(a == b for a, b in zip(ours, others, strict=True))
    return {
        "schema": "recguide.vs_transformers/1",
        "model": model.name,
        "threads": torch.get_num_threads(),
        "prompts": len(prompts),
        "tokens": tokens,
        "equal_texts": same,
        "recguide_tps": spread([mine[0] for mine, _ in pairs]),
        "transformers_tps": spread([other[0] for _, other in pairs]),
        "ratio": spread([mine[0] / other[0] for mine, other in pairs]),
        "goal": GOAL,
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nld-tiny")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load_model(options.model)
    assert model.tokenizer is not None
    chosen = select(load_prompts(["demo"]).prompts, options.prompts, seed=0)
    prompts = [
        np.array(model.tokenizer.encode(model.render([{"role": "user", "content": p.text}])))
        for p in chosen
    ]
    record = compare(model, prompts, options.tokens, options.repeats)
    ours, theirs, ratio = (record[f"{n}"] for n in ("recguide_tps", "transformers_tps", "ratio"))
    print(
        f"RecGuide AR {ours['median']:.1f} tokens/s, transformers {theirs['median']:.1f}; "
        f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f} over repeats, goal "
        f"{GOAL}x); {record['equal_texts']} of {record['prompts']} texts equal",
        file=sys.stderr,
    )
    if options.json:
        print(json.dumps(record))


if __name__ == "__main__":
    main()
